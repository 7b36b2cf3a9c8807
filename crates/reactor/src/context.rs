//! What a reactor offers to the pollers that live on it.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::File;
use crate::clock::OwnerId;
use crate::core::Core;
use crate::notifier::PeerNotifier;
use crate::op::{CompletionPort, InFlight, IoOp, OpCompletion};
use crate::spin::{PollControl, WaitTarget};
use crate::tsc_clock::base;

/// Names a poller on its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What a poller did in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// It found work; ask again at once.
    Busy,
    /// It found nothing.
    Idle,
    /// It has ended and wants to be dropped.
    Gone,
}

/// Something that looks for work when asked. All calls come from its reactor's thread.
pub trait Poller: Any {
    /// Looks for work and does a bounded amount of it. Called every turn while hot.
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome;

    /// It is about to be hot: no notification is needed until [`Poller::arm`].
    fn on_runnable(&mut self);

    /// It is about to be cold: ask to be notified, and look once more. True when there is work
    /// after all; it stays hot then.
    fn arm(&mut self) -> bool;

    /// Its descriptor was written since the last look, or has told an error: so often as the kernel
    /// has said so.
    fn on_kick(&mut self, _error: bool) {}

    /// It stays hot when idle: its reactor never sleeps. For those whom nobody would wake.
    fn always_polls(&self) -> bool {
        false
    }

    /// How it may look for work instead of being woken; the same each time.
    fn polling(&self) -> Option<&PollControl> {
        None
    }

    /// What it waits for, when it has found nothing.
    fn waits_for(&self) -> WaitTarget {
        WaitTarget::Event
    }

    /// Whom it serves, for those who share the thread with it; 0 for nobody in particular.
    fn label(&self) -> OwnerId {
        0
    }
}

/// A reactor as the code that runs on it sees it.
pub struct Context<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) current: Option<PollerId>,
}

impl Context<'_> {
    /// Gives a poller a home on this reactor. `make` may open ports: they belong to the new
    /// poller. It starts hot; `kick`, if there is one, wakes it whenever it becomes readable.
    ///
    /// # Errors
    /// What `make` refuses.
    pub fn add_poller<P: Poller, E>(
        &mut self,
        kick: Option<Arc<OwnedFd>>,
        make: impl FnOnce(&mut Context<'_>) -> Result<P, E>,
    ) -> Result<PollerId, E> {
        let id = self.core.reserve();
        match make(&mut Context { core: self.core, current: Some(id) }) {
            Err(error) => {
                self.core.remove_poller(id);
                Err(error)
            }
            Ok(poller) => {
                self.core.install_poller(id, Box::new(poller), kick);
                Ok(id)
            }
        }
    }

    /// Calls `with` on a poller and makes it hot. `None` when it is gone or of another type.
    pub fn with_poller<P: Poller, R>(
        &mut self,
        id: PollerId,
        with: impl FnOnce(&mut P, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let mut boxed = self.core.take_poller(id)?;
        let any: &mut dyn Any = &mut *boxed;
        let result = any
            .downcast_mut::<P>()
            .map(|poller| with(poller, &mut Context { core: self.core, current: Some(id) }));
        self.core.put_poller(id, boxed);
        result
    }

    /// Drops a poller now. Its operations in the kernel run to their end unseen.
    pub fn remove_poller(&mut self, id: PollerId) {
        self.core.remove_poller(id);
    }

    /// The poller that is being made or called, for those who are to find it again.
    pub fn poller(&self) -> Option<PollerId> {
        self.current
    }

    /// A port for the poller that is being made or called.
    ///
    /// # Panics
    /// Outside of a poller: an operation must come back to somebody.
    pub fn open_port(&mut self) -> CompletionPort {
        let owner = self.current.expect("ports are opened by pollers");
        self.core.open_port(owner)
    }

    /// Starts an operation. The kernel learns of it at the end of this turn, with all others.
    pub fn submit(&mut self, port: &CompletionPort, op: IoOp, tag: u64) {
        let (entry, kept) = InFlight::prepare(port, op, tag);
        self.core.ring.start(entry, kept);
    }

    /// Moves what has ended into `out`.
    pub fn reap(&mut self, port: &CompletionPort, out: &mut Vec<OpCompletion>) {
        self.core.reap(port, out);
    }

    /// A bell for the poller that is being made or called; closed with it, or by
    /// [`Context::close_bell`].
    ///
    /// # Panics
    /// Outside of a poller.
    pub fn open_notifier(&mut self, fd: Arc<OwnedFd>) -> PeerNotifier {
        let owner = self.current.expect("bells are opened by pollers");
        self.core.open_bell(owner, File::new(fd))
    }

    /// Signals the peer at the end of this turn. Signals that it has not taken are not repeated
    /// without end.
    pub fn notify(&mut self, peer_notifier: &PeerNotifier) {
        if let Some(send) = peer_notifier.0.next() {
            self.core.ring.signal(&peer_notifier.0, send);
        }
    }

    /// Closes a bell, giving up what the peer has not taken.
    pub fn close_bell(&mut self, peer_notifier: PeerNotifier) {
        self.core.close_bell(&peer_notifier.0);
    }

    /// Hands the kernel what was submitted and rung so far, before somebody else is told
    /// something that must come after it.
    pub fn flush(&mut self) {
        self.core.ring.flush();
    }

    /// As [`Self::flush`], unless others are asked in this turn too and may add to it: one system
    /// call for all of them is worth more than to be early.
    pub fn flush_if_alone(&mut self) {
        if self.core.is_alone() {
            self.core.ring.flush();
        }
    }

    /// Time of the first call in this turn: good enough for what is counted per batch.
    /// In nanoseconds of [`crate::clock_ns`].
    pub fn now_ns(&mut self) -> u64 {
        self.core.clock.now()
    }

    /// As [`Self::now_ns`].
    pub fn now(&mut self) -> Instant {
        base() + Duration::from_nanos(self.now_ns())
    }

    /// Time now, and for the rest of this turn: for the end of a batch. In nanoseconds.
    pub fn now_again_ns(&mut self) -> u64 {
        self.core.clock.read_end()
    }

    /// When the pollers of this reactor were last asked before this turn; this turn's begin if the
    /// thread was asleep or had nothing to do since. What is found in this turn and was not there
    /// in the last one has waited no longer than from then on. In nanoseconds.
    pub fn last_poll_ns(&mut self) -> u64 {
        self.core.clock.last_look()
    }

    /// Whom, of all but `label`, the thread served longest in this turn or the last, and how long
    /// in nanoseconds.
    pub fn longest_other(&self, label: OwnerId) -> Option<(OwnerId, u64)> {
        self.core.clock.longest_other(label)
    }

    /// Number of this reactor in the process, see [`crate::Handle::number`].
    pub fn reactor(&self) -> u32 {
        self.core.mailbox.number
    }

    /// Counts system calls that a poller made itself.
    pub fn count_syscalls(&self, count: u64) {
        self.core.mailbox.counters.add_syscalls(count);
    }

    /// Ends the reactor when the kernel has finished what it was given.
    pub(crate) fn stop(&mut self) {
        self.core.stopping = true;
    }
}
