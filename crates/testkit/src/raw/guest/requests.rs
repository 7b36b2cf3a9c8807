//! Requests of a guest: submitting, running, and waiting for them.

use super::super::connection::ANSWER_DEADLINE;
use super::super::request::{Placed, Request as BlkRequest};
use super::super::ring::Used;
use super::{Guest, WaitEvent};
use crate::error::{Error, Result};

/// A submitted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Head of its chain.
    pub head: u16,
    /// Location of the request in memory.
    pub placed: Placed,
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Status byte.
    pub status: u8,
    /// Number of bytes that the backend reports as written, including the status byte.
    pub written: u32,
    /// Contents of the buffers.
    pub data: Vec<u8>,
}

impl Guest {
    /// Makes a well-formed request available. Does not kick.
    ///
    /// # Errors
    /// [`Error::Full`] if memory or ring are used up.
    pub fn submit(&mut self, queue: usize, request: &BlkRequest) -> Result<Pending> {
        let mut all = self.submit_all(queue, std::slice::from_ref(request))?;
        Ok(all.swap_remove(0))
    }

    /// Makes requests available all at once. Does not kick.
    ///
    /// # Errors
    /// [`Error::Full`] if memory or ring are used up.
    pub fn submit_all(&mut self, queue: usize, requests: &[BlkRequest]) -> Result<Vec<Pending>> {
        let ring = &mut self.queues[queue].ring;
        let mut all = Vec::new();
        for request in requests {
            let placed = request.place(&mut self.memory)?;
            let head = ring.add_chain(&self.memory, &placed.descs())?;
            all.push(Pending { head, placed });
        }
        let heads: Vec<u16> = all.iter().map(|pending| pending.head).collect();
        ring.publish_all(&self.memory, &heads)?;
        Ok(all)
    }

    /// Runs one request from start to end.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it does not complete in 10 s, [`Error::Closed`] or [`Error::Reply`] if
    /// the backend fails.
    pub fn run(&mut self, queue: usize, request: &BlkRequest) -> Result<Done> {
        let mark = self.memory.mark();
        let pending = self.submit(queue, request)?;
        self.kick(queue)?;
        let done = self.finish(queue, &pending)?;
        self.memory.release(mark);
        Ok(done)
    }

    /// Waits for a submitted request, which must be the queue's next to complete.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn finish(&mut self, queue: usize, pending: &Pending) -> Result<Done> {
        let mut all = self.finish_all(queue, std::slice::from_ref(pending))?;
        Ok(all.swap_remove(0))
    }

    /// Waits for submitted requests, which must be the queue's next to complete, in any order:
    /// virtio guarantees none (virtio 1.2, 2.7.8). Returns the results in the order of `pending`.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn finish_all(&mut self, queue: usize, pending: &[Pending]) -> Result<Vec<Done>> {
        let mut done = vec![None; pending.len()];
        for _ in pending {
            let used = self.next_used(queue)?;
            let known = pending.iter().position(|one| used.id == u32::from(one.head));
            let Some(at) = known.filter(|at| done[*at].is_none()) else {
                let heads: Vec<u16> = pending.iter().map(|one| one.head).collect();
                return Err(reply(format!("{used:?}, asked for {heads:?}")));
            };
            let placed = &pending[at].placed;
            done[at] = Some(Done {
                status: placed.status(&self.memory)?,
                written: used.len,
                data: placed.data(&self.memory)?,
            });
        }
        Ok(done.into_iter().flatten().collect())
    }

    /// Returns the status byte of a submitted request, in whatever state it is.
    ///
    /// # Errors
    /// [`Error::Outside`] if its memory was released.
    pub fn status(&self, pending: &Pending) -> Result<u8> {
        pending.placed.status(&self.memory)
    }

    fn next_used(&mut self, queue: usize) -> Result<Used> {
        let what = || format!("a request on queue {queue}");
        match self.wait(queue, ANSWER_DEADLINE)? {
            WaitEvent::Used(used) => Ok(used),
            WaitEvent::QueueError => Err(reply("the queue's error was signalled".into())),
            WaitEvent::Closed => Err(Error::Closed { what: what() }),
            WaitEvent::Silent => {
                let after_ms = ANSWER_DEADLINE.as_millis();
                Err(Error::Timeout { what: what(), after_ms })
            }
        }
    }
}

fn reply(what: String) -> Error {
    Error::Reply { request: "a virtio-blk request".into(), what }
}
