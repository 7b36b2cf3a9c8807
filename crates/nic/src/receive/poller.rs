//! Poller of a receive queue.

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

/// Poller of a receive queue: it has work while frames wait.
pub(crate) struct ReceivePoller {
    queue: Rc<RefCell<Receive>>,
    hub: Rc<RefCell<Hub>>,
    port: PortId,
    /// True if the guest was asked to kick.
    armed: bool,
    /// Timer for the time after which the first frame is dropped.
    stall: Timer,
    /// Timer for the release of unused memory.
    idle: Timer,
    /// Timer for polling the guest's consumption while a hub requests it.
    takes: Timer,
    /// Polls of the consumption since the last batch.
    polls: usize,
    /// True if there was a batch since the last poll.
    is_new: bool,
}

/// Delays of the polls for the consumption of the last batch while a hub requests it, each from the
/// poll before. Then polling ends: a guest that reports nothing may never report anything.
const POLL_DELAYS_NS: [u64; 3] = [1_000_000, 10_000_000, 100_000_000];

impl ReceivePoller {
    pub(crate) fn new(
        context: &mut Context<'_>,
        queue: Rc<RefCell<Receive>>,
        hub: Rc<RefCell<Hub>>,
        port: PortId,
    ) -> Self {
        let [stall, idle, takes] = [(); 3].map(|()| Timer::new(context));
        Self { queue, hub, port, armed: false, stall, idle, takes, polls: 0, is_new: false }
    }

    /// Records that a batch has been delivered.
    pub(super) fn begin(&mut self) {
        (self.polls, self.is_new) = (0, true);
    }

    /// Counts dropped frames that had waited among the port's drops too.
    fn lose(&self) {
        let lost = std::mem::take(&mut self.queue.borrow_mut().lost);
        for reason in lost {
            self.hub.borrow_mut().count_late_drop(self.port, reason);
        }
    }

    /// Sets timers for the waiting frames, unused memory and requested consumption.
    fn set_timers(&mut self, now_ns: u64, context: &mut Context<'_>) {
        let mut queue = self.queue.borrow_mut();
        if let Some(idle_ns) = queue.backlog.idle_at_ns() {
            if idle_ns <= now_ns {
                queue.backlog.release();
            } else {
                self.idle.set(idle_ns, now_ns, context);
            }
        } else if let Some(old_ns) = queue.backlog.old_at_ns() {
            // A guest that posts no more buffers sends no more kicks.
            let no_buffers = queue.stock.is_empty();
            let at_ns = if no_buffers { old_ns } else { queue.backlog.stalls_at_ns() };
            self.stall.set(at_ns, now_ns, context);
        }
        // A timer that is late for this batch was set for an earlier one.
        if (std::mem::take(&mut self.is_new) || !self.takes.runs())
            && self.polls <= POLL_DELAYS_NS.len()
            && queue.poll_consumption()
        {
            if let Some(after_ns) = POLL_DELAYS_NS.get(self.polls) {
                self.takes.set(now_ns.saturating_add(*after_ns), now_ns, context);
            }
            self.polls += 1;
        }
    }
}

impl ReactorQueue for ReceivePoller {
    /// Stops the queue after a last attempt to deliver waiting frames.
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
        self.stall.poll(context);
        self.idle.poll(context);
        self.takes.poll(context);
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
            self.set_timers(now_ns, context);
        }
        if some { PollOutcome::Busy } else { PollOutcome::Idle }
    }

    // The queue itself may be the caller and is borrowed then: do not touch it.
    fn on_runnable(&mut self) {}

    /// Requests kicks only while frames wait.
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
