//! The end of a queue, and what is left of one whose storage does not answer.
//!
//! ```text
//!   running --begin--> stopping --drained--> gone, with a position
//!                          |
//!                          +--deadline--> zombie --the kernel is done--> gone
//!
//!   running --begin quiet--> quiet --drained--> gone, with a position
//!      ^                       |
//!      +-------deadline--------+
//! ```
//! A quiet end is one that nothing may be lost by, for a successor that is to go on with the same
//! ring: requests that wait for room on the storage are not failed, and when the deadline passes
//! the queue serves as before.
//!
//! A ring that its driver has broken ends as such: nobody goes on with it before its front-end has
//! started it anew.
//!
//! Nothing can take a request back that the kernel has. Its buffers must stay mapped and its file
//! open until it ends, so the queue stays on its reactor, where it costs nothing. It has failed
//! for its ring: nothing is completed, and what an in-flight region says of it stays as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Instant;

use reactor::{Handle, PollerId, Stopped};

use crate::device::RunningQueue;
use crate::queue::BlkQueue;

/// A queue that takes no more requests.
#[derive(Debug)]
pub struct DrainingQueue {
    reactor: Handle,
    id: PollerId,
    index: u16,
    /// Known before the answer comes.
    broken: Arc<AtomicBool>,
    answer: Receiver<u16>,
}

/// How a stop ended.
#[derive(Debug)]
pub enum DrainOutcome {
    /// Everything in flight has ended; a successor goes on at this available index.
    Drained(u16),
    /// The same of a ring that its driver had broken.
    Broken(u16),
    /// Storage did not end it in time; the queue was given up.
    Stuck(AbandonedQueue),
}

/// How a quiet end came out.
#[derive(Debug)]
pub enum QuiesceOutcome {
    /// Everything in flight has ended; a successor goes on at this available index.
    Drained(u16),
    /// The same of a ring that its driver had broken.
    Broken(u16),
    /// Not in time: it serves as before.
    GoesOn(RunningQueue),
}

/// A queue that was given up. Dropping this changes nothing: the queue ends by itself.
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
        quiet: bool,
    ) -> Result<Self, Stopped> {
        let (answer, wait) = sync_channel(1);
        let broken = Arc::new(AtomicBool::new(false));
        let found = Arc::clone(&broken);
        reactor.send(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, context| {
                found.store(queue.is_broken(), Ordering::Release);
                if quiet { queue.quiesce(answer) } else { queue.stop(context, Some(answer)) }
            });
        })?;
        Ok(Self { reactor, id, index, broken, answer: wait })
    }

    /// It was broken when the stop began. Later nothing new is taken that could break it.
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    fn quiet_end(&self, next_avail: u16) -> QuiesceOutcome {
        if self.is_broken() {
            QuiesceOutcome::Broken(next_avail)
        } else {
            QuiesceOutcome::Drained(next_avail)
        }
    }

    fn stop_end(&self, next_avail: u16) -> DrainOutcome {
        if self.is_broken() {
            DrainOutcome::Broken(next_avail)
        } else {
            DrainOutcome::Drained(next_avail)
        }
    }

    /// Waits for what is in flight until `deadline`, then lets the queue go on. For a stop that
    /// was begun by [`RunningQueue::begin_quiesce`].
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait_or_resume(self, deadline: Instant) -> Result<QuiesceOutcome, Stopped> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.answer.recv_timeout(left) {
            Ok(next_avail) => return Ok(self.quiet_end(next_avail)),
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let id = self.id;
        let goes_on = self.reactor.call(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, _| queue.unquiesce())
        })?;
        match goes_on {
            Some(()) => {
                Ok(QuiesceOutcome::GoesOn(RunningQueue::running(self.reactor, id, self.index)))
            }
            // It has ended in between, and has answered before.
            None => Ok(self.quiet_end(self.answer.recv().map_err(|_| Stopped)?)),
        }
    }

    /// Waits for what is in flight, however long that takes.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait(self) -> Result<u16, Stopped> {
        self.answer.recv().map_err(|_| Stopped)
    }

    /// Waits for what is in flight until `deadline`, then gives the queue up.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait_until(self, deadline: Instant) -> Result<DrainOutcome, Stopped> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.answer.recv_timeout(left) {
            Ok(next_avail) => return Ok(self.stop_end(next_avail)),
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
            // It has ended in between, and has answered before.
            None => Ok(self.stop_end(self.answer.recv().map_err(|_| Stopped)?)),
        }
    }
}

impl AbandonedQueue {
    /// Requests that it had when it was given up.
    pub fn requests(&self) -> u16 {
        self.requests
    }

    /// Its driver had broken the ring.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The available index behind everything that it has taken. A successor goes on there if an
    /// in-flight region has recorded what was taken; else only this queue knows of it.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Waits until the kernel has ended them all.
    pub fn wait(self) {
        // An answer, or none because the reactor has ended: it is over either way.
        let _ = self.answer.recv();
    }
}
