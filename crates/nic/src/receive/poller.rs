//! A receive queue's life on its reactor.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::Table;
use net::port::PortId;
use reactor::{Context, PollOutcome, Poller};
use virtq::RingError;

use super::Receive;
use crate::frame_sink::FrameSink as _;
use crate::hub::Hub;
use crate::ring::ReactorQueue;
use crate::timer::Timer;

/// Its life on the reactor: it has something to do while frames wait.
pub(crate) struct ReceivePoller {
    queue: Rc<RefCell<Receive>>,
    hub: Rc<RefCell<Hub>>,
    port: PortId,
    /// The guest was asked to kick.
    armed: bool,
    /// The first frame must not be the first for longer, or wait for longer.
    stall: Timer,
    /// Memory is not needed any more.
    idle: Timer,
    /// Somebody waits for what the guest takes.
    takes: Timer,
    /// How often that was looked at since the last batch.
    looks: usize,
    /// There was a batch since the last look.
    is_new: bool,
}

/// When it is looked again whether a guest has taken what it was given in the last batch, if somebody waits
/// for that, each time from the look before; then no more: one that tells nothing may tell nothing for ever.
const LOOKS_NS: [u64; 3] = [1_000_000, 10_000_000, 100_000_000];

impl ReceivePoller {
    pub(crate) fn new(
        context: &mut Context<'_>,
        queue: Rc<RefCell<Receive>>,
        hub: Rc<RefCell<Hub>>,
        port: PortId,
    ) -> Self {
        let [stall, idle, takes] = [(); 3].map(|()| Timer::new(context));
        Self { queue, hub, port, armed: false, stall, idle, takes, looks: 0, is_new: false }
    }

    /// A batch has been given.
    pub(super) fn begin(&mut self) {
        (self.looks, self.is_new) = (0, true);
    }

    /// What had waited and was lost counts among what the port has lost, too.
    fn lose(&self) {
        let lost = std::mem::take(&mut self.queue.borrow_mut().lost);
        for reason in lost {
            self.hub.borrow_mut().count_late_drop(self.port, reason);
        }
    }

    /// Sees to it that somebody looks again at what is left, or at what is not needed any more.
    fn look_again(&mut self, now_ns: u64, context: &mut Context<'_>) {
        let mut queue = self.queue.borrow_mut();
        if let Some(idle_ns) = queue.backlog.idle_at_ns() {
            if idle_ns <= now_ns {
                queue.backlog.release();
            } else {
                self.idle.set(idle_ns, now_ns, context);
            }
        } else if let Some(old_ns) = queue.backlog.old_at_ns() {
            // A guest that posts nothing any more kicks no more.
            let no_buffers = queue.stock.is_empty();
            let at_ns = if no_buffers { old_ns } else { queue.backlog.stalls_at_ns() };
            self.stall.set(at_ns, now_ns, context);
        }
        // A look that is late for this batch was set for one before.
        if (std::mem::take(&mut self.is_new) || !self.takes.runs())
            && self.looks <= LOOKS_NS.len()
            && queue.poll_consumption()
        {
            if let Some(after_ns) = LOOKS_NS.get(self.looks) {
                self.takes.set(now_ns.saturating_add(*after_ns), now_ns, context);
            }
            self.looks += 1;
        }
    }
}

impl ReactorQueue for ReceivePoller {
    /// What still waits has its last chance.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        let now_ns = context.now_ns();
        let next = {
            let mut queue = self.queue.borrow_mut();
            while queue.deliver(now_ns) {}
            queue.forget();
            queue.stop(context)
        };
        self.lose();
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.queue.borrow_mut().set_memory(table)
    }

    fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        self.queue.borrow_mut().ring.set_call(call, context);
    }
}

impl Poller for ReceivePoller {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        if std::mem::take(&mut self.armed) {
            self.queue.borrow().ring.queue.suppress();
        }
        self.stall.look(context);
        self.idle.look(context);
        self.takes.look(context);
        let now_ns = context.now_ns();
        let some = {
            let mut queue = self.queue.borrow_mut();
            let some = queue.deliver(now_ns);
            if some {
                context.now_again_ns();
                queue.show(context);
            }
            some
        };
        if some {
            self.lose();
        } else {
            self.look_again(now_ns, context);
        }
        if some { PollOutcome::Busy } else { PollOutcome::Idle }
    }

    // The queue itself may have called it, which is not to be touched then.
    fn on_runnable(&mut self) {}

    /// Kicks are asked for only while frames wait.
    fn arm(&mut self) -> bool {
        let mut queue = self.queue.borrow_mut();
        if queue.backlog.is_empty() {
            return false;
        }
        let more = queue.ring.queue.arm();
        self.armed = !more;
        more
    }
}
