//! Stop of a queue: drain it, quiesce it, or abandon it if its storage does not answer.
//!
//! ```text
//!   running --stop--> draining --drained--> gone, with a position
//!                        |
//!                        +--deadline--> abandoned --the kernel ends the I/O--> gone
//!
//!   running --quiesce--> quiesced --drained--> gone, with a position
//!      ^                    |
//!      +------deadline------+
//! ```
//! Quiescing loses nothing, because a successor is to continue with the same ring. Requests that
//! wait for space on the storage do not fail. If the deadline passes, the queue serves again.
//!
//! A queue that is handed over to another process is quiesced too, and does not wait for space. As
//! soon as only requests that wait for space are left, they stay recorded, and the successor submits
//! them again. They are recorded in the front-end's in-flight region. If it has none, the caller
//! provides a region that goes to the successor.
//!
//! A ring that its driver has broken is reported as broken. No successor continues with it before
//! the front-end has started it anew.
//!
//! The kernel does not return a request that it has. The request's buffers must stay mapped and
//! its file must stay open until the kernel ends it. So an abandoned queue stays on its reactor,
//! where it costs nothing. Its ring has failed: the queue completes nothing, and the records in the
//! in-flight region stay unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Instant;

use reactor::{Handle, PollerId, Stopped};

use virtq::Inflight;

use crate::device::RunningQueue;
use crate::queue::BlkQueue;

/// Way in which a queue stops.
#[derive(Debug)]
pub(crate) enum StopMode {
    /// Requests that wait for space fail, or stay in the front-end's in-flight region.
    Stop,
    /// Requests that wait for space continue to wait.
    Quiesce,
    /// Requests that wait for space stay recorded for another process: in the front-end's region,
    /// or else in this one.
    HandOver(Option<Inflight>),
}

/// A queue that takes no more requests and finishes those in flight.
#[derive(Debug)]
pub struct DrainingQueue {
    reactor: Handle,
    id: PollerId,
    index: u16,
    /// Whether the ring was broken at the start of the stop; set before the answer arrives.
    broken: Arc<AtomicBool>,
    answer: Receiver<u16>,
}

/// Result of [`DrainingQueue::wait_until`].
#[derive(Debug)]
pub enum DrainOutcome {
    /// All requests have ended; a successor continues at this available index.
    Drained(u16),
    /// All requests have ended, and the driver has broken the ring.
    Broken(u16),
    /// The storage did not end all requests in time; the queue is abandoned.
    Stuck(AbandonedQueue),
}

/// Result of [`DrainingQueue::wait_or_resume`].
#[derive(Debug)]
pub enum QuiesceOutcome {
    /// All requests have ended; a successor continues at this available index.
    Drained(u16),
    /// All requests have ended, and the driver has broken the ring.
    Broken(u16),
    /// The deadline passed; the queue serves again.
    Resumed(RunningQueue),
}

/// A queue with I/O that the kernel has not ended. Dropping this value changes nothing: the queue
/// ends by itself.
#[derive(Debug)]
pub struct AbandonedQueue {
    requests: u16,
    next_avail: u16,
    broken: bool,
    answer: Receiver<u16>,
}

impl DrainingQueue {
    pub(crate) fn begin(
        reactor: Handle,
        id: PollerId,
        index: u16,
        mode: StopMode,
    ) -> Result<Self, Stopped> {
        let (answer, wait) = sync_channel(1);
        let broken = Arc::new(AtomicBool::new(false));
        let found = Arc::clone(&broken);
        reactor.send(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, context| {
                found.store(queue.is_broken(), Ordering::Release);
                match mode {
                    StopMode::Stop => queue.stop(context, Some(answer)),
                    StopMode::Quiesce => queue.quiesce(answer),
                    StopMode::HandOver(spare) => queue.hand_over(answer, spare),
                }
            });
        })?;
        Ok(Self { reactor, id, index, broken, answer: wait })
    }

    /// Returns whether the ring was broken when the stop began. Afterwards the queue takes nothing
    /// new that could break it.
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    fn quiesce_outcome(&self, next_avail: u16) -> QuiesceOutcome {
        if self.is_broken() {
            QuiesceOutcome::Broken(next_avail)
        } else {
            QuiesceOutcome::Drained(next_avail)
        }
    }

    fn drain_outcome(&self, next_avail: u16) -> DrainOutcome {
        if self.is_broken() {
            DrainOutcome::Broken(next_avail)
        } else {
            DrainOutcome::Drained(next_avail)
        }
    }

    /// Waits until all requests have ended, or resumes the queue at `deadline`. Only for a stop
    /// that [`RunningQueue::begin_quiesce`] or [`RunningQueue::begin_handover`] began.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended.
    pub fn wait_or_resume(self, deadline: Instant) -> Result<QuiesceOutcome, Stopped> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.answer.recv_timeout(left) {
            Ok(next_avail) => return Ok(self.quiesce_outcome(next_avail)),
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let id = self.id;
        let goes_on = self.reactor.call(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, _| queue.unquiesce())
        })?;
        match goes_on {
            Some(()) => {
                Ok(QuiesceOutcome::Resumed(RunningQueue::running(self.reactor, id, self.index)))
            }
            // The queue ended meanwhile and has sent its answer.
            None => Ok(self.quiesce_outcome(self.answer.recv().map_err(|_| Stopped)?)),
        }
    }

    /// Waits without a limit until all requests have ended. Returns the available index at which a
    /// successor continues.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended.
    pub fn wait(self) -> Result<u16, Stopped> {
        self.answer.recv().map_err(|_| Stopped)
    }

    /// Waits until all requests have ended, or abandons the queue at `deadline`.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended.
    pub fn wait_until(self, deadline: Instant) -> Result<DrainOutcome, Stopped> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.answer.recv_timeout(left) {
            Ok(next_avail) => return Ok(self.drain_outcome(next_avail)),
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let id = self.id;
        let given_up = self.reactor.call(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, context| queue.abandon_ring(context))
        })?;
        match given_up {
            Some((requests, next_avail)) => {
                let broken = self.is_broken();
                Ok(DrainOutcome::Stuck(AbandonedQueue {
                    requests,
                    next_avail,
                    broken,
                    answer: self.answer,
                }))
            }
            // The queue ended meanwhile and has sent its answer.
            None => Ok(self.drain_outcome(self.answer.recv().map_err(|_| Stopped)?)),
        }
    }
}

impl AbandonedQueue {
    /// Returns the number of requests in flight when the queue was abandoned.
    pub fn requests(&self) -> u16 {
        self.requests
    }

    /// Returns whether the driver had broken the ring.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns the available index behind all popped requests. A successor continues there if an
    /// in-flight region has recorded these requests; otherwise only this queue knows of them.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Waits until the kernel has ended all requests.
    pub fn wait(self) {
        // An error means that the reactor has ended, and the queue with it.
        let _ = self.answer.recv();
    }
}
