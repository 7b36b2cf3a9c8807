//! Interface that a reactor offers to the pollers on it.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::OwnerId;
use crate::core::Core;
use crate::notifier::PeerNotifier;
use crate::op::{CompletionPort, InFlight, IoOp, OpCompletion};
use crate::spin::{PollControl, WaitTarget};
use crate::tsc_clock::base;
use crate::{EndGuards, File, Handle};

/// Identifier of a poller on its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Result of one call of [`Poller::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// The poller found work and must be polled again at once.
    Busy,
    /// The poller found no work.
    Idle,
    /// The poller has ended and is to be dropped.
    Gone,
}

/// Source of work that a reactor polls. All calls come from the reactor's thread.
pub trait Poller: Any {
    /// Polls for work and does a bounded amount of it. The reactor calls this in every turn while
    /// the poller is hot.
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome;

    /// Turns notifications off: the poller becomes hot and needs none until [`Poller::arm`].
    fn on_runnable(&mut self);

    /// Turns notifications on before the poller goes cold, and polls once more. Returns true if
    /// there is work after all; the poller stays hot then.
    fn arm(&mut self) -> bool;

    /// Reports that the poller's descriptor became readable or has an error. The reactor calls this
    /// once for each event that the kernel reports.
    fn on_kick(&mut self, _error: bool) {}

    /// Returns whether the poller stays hot when idle, so that its reactor never sleeps. For
    /// pollers that no event wakes.
    fn always_polls(&self) -> bool {
        false
    }

    /// Returns the control block of the poller's busy polling, or `None` if it never busy-polls.
    /// Returns the same value each time.
    fn polling(&self) -> Option<&PollControl> {
        None
    }

    /// Returns the event source that the poller waits for after it found no work.
    fn waits_for(&self) -> WaitTarget {
        WaitTarget::Event
    }

    /// Returns the owner that the poller serves, for the statistics of pollers on the same thread;
    /// 0 for none.
    fn label(&self) -> OwnerId {
        0
    }
}

/// Handle on a reactor for code that runs on its thread.
pub struct Context<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) current: Option<PollerId>,
}

impl Context<'_> {
    /// Adds a poller to this reactor. `make` may open completion ports: they belong to the new
    /// poller. The poller starts hot. If `kick` is given, the poller becomes hot whenever that
    /// descriptor becomes readable.
    ///
    /// # Errors
    /// The error of `make`.
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

    /// Calls `with` on a poller and makes the poller hot. Returns `None` if the poller is gone or
    /// has another type.
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

    /// Makes a poller hot, if it still exists. A poller that wakes itself while it is polled sends
    /// itself a task that does so: the result of a poll decides whether it stays hot.
    pub fn wake(&mut self, id: PollerId) {
        self.core.make_runnable(id);
    }

    /// Returns the handle of this reactor.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.core.mailbox))
    }

    /// Returns the values that are dropped when this reactor has ended.
    pub fn end_guards(&self) -> EndGuards {
        self.core.end_guards.clone()
    }

    /// Drops a poller now. The kernel completes its operations, and the results are dropped.
    pub fn remove_poller(&mut self, id: PollerId) {
        self.core.remove_poller(id);
    }

    /// Returns the poller that is being made or called, so that it can be addressed later.
    pub fn poller(&self) -> Option<PollerId> {
        self.current
    }

    /// Opens a completion port for the poller that is being made or called.
    ///
    /// # Panics
    /// Panics outside of a poller: every operation needs an owner for its completion.
    pub fn open_port(&mut self) -> CompletionPort {
        let owner = self.current.expect("ports are opened by pollers");
        self.core.open_port(owner)
    }

    /// Starts an operation. The reactor submits it at the end of this turn, together with all
    /// others.
    pub fn submit(&mut self, port: &CompletionPort, op: IoOp, tag: u64) {
        let (entry, kept) = InFlight::prepare(port, op, tag);
        self.core.ring.start(entry, kept);
    }

    /// Moves the completed operations of `port` into `out`.
    pub fn reap(&mut self, port: &CompletionPort, out: &mut Vec<OpCompletion>) {
        self.core.reap(port, out);
    }

    /// Opens a notifier for the poller that is being made or called. It is closed with the poller,
    /// or by [`Context::close_notifier`].
    ///
    /// # Panics
    /// Panics outside of a poller.
    pub fn open_notifier(&mut self, fd: Arc<OwnedFd>) -> PeerNotifier {
        let owner = self.current.expect("bells are opened by pollers");
        self.core.open_bell(owner, File::new(fd))
    }

    /// Signals the peer at the end of this turn. The number of signals that a peer leaves unread is
    /// bounded.
    pub fn notify(&mut self, peer_notifier: &PeerNotifier) {
        if let Some(send) = peer_notifier.0.next() {
            self.core.ring.signal(&peer_notifier.0, send);
        }
    }

    /// Closes a notifier and cancels the signals that the peer has not read.
    pub fn close_notifier(&mut self, peer_notifier: PeerNotifier) {
        self.core.close_notifier(&peer_notifier.0);
    }

    /// Submits all operations and signals that are queued so far. For use before a notification
    /// that must follow them.
    pub fn flush(&mut self) {
        self.core.ring.flush();
    }

    /// Submits as [`Self::flush`] does, but only if no other poller runs in this turn. Other
    /// pollers may add to the queue, and one system call for all is worth more than an early
    /// submission.
    pub fn flush_if_alone(&mut self) {
        if self.core.is_alone() {
            self.core.ring.flush();
        }
    }

    /// Returns the time of the first call in this turn, in nanoseconds of [`crate::clock_ns`]. This
    /// is exact enough for counts per batch.
    pub fn now_ns(&mut self) -> u64 {
        self.core.clock.now()
    }

    /// Returns the time of [`Self::now_ns`] as an [`Instant`].
    pub fn now(&mut self) -> Instant {
        base() + Duration::from_nanos(self.now_ns())
    }

    /// Reads the time anew, in nanoseconds, and uses it for the rest of this turn. For the end of a
    /// batch.
    pub fn now_again_ns(&mut self) -> u64 {
        self.core.clock.read_end()
    }

    /// Returns when the pollers of this reactor were last polled before this turn, in nanoseconds.
    /// Returns the begin of this turn if the thread slept or no poller read the time since. Work
    /// that this turn finds first has waited no longer than since then.
    pub fn last_poll_ns(&mut self) -> u64 {
        self.core.clock.last_polled()
    }

    /// Returns the owner, other than `label`, that the thread served longest in this turn or the
    /// last, with the time in nanoseconds.
    pub fn longest_other(&self, label: OwnerId) -> Option<(OwnerId, u64)> {
        self.core.clock.longest_other(label)
    }

    /// Returns the number of this reactor in the process, see [`crate::Handle::number`].
    pub fn reactor(&self) -> u32 {
        self.core.mailbox.number
    }

    /// Counts system calls that a poller made itself.
    pub fn count_syscalls(&self, count: u64) {
        self.core.mailbox.counters.add_syscalls(count);
    }

    /// Stops the reactor as soon as the kernel has completed all operations.
    pub(crate) fn stop(&mut self) {
        self.core.stopping = true;
    }
}
