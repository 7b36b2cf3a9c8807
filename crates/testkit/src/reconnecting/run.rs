//! Main loop of the guest: offering, waiting and collecting.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::content::{BLOCK_BYTES, Range};
use super::load::{draw, read};
use super::{LOST_AFTER, ReconnectingGuest};
use crate::error::{Error, Result};
use crate::raw::guest::drain;
use crate::raw::wire::feature;

/// Most completions collected from one queue before the other queues.
const COLLECT_MAX: u64 = 16;

/// Reason why the guest stopped working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The time was over.
    Time,
    /// The backend closed the connection, or died.
    Closed,
    /// No request is in flight.
    Drained,
}

impl ReconnectingGuest {
    /// Keeps every queue full until `until`, or until the connection ends.
    ///
    /// # Errors
    /// [`Error::Reply`] if a completion or its content is wrong, [`Error::Timeout`] if a request
    /// is lost.
    pub fn run(&mut self, until: Instant) -> Result<End> {
        self.work(Some(until), true)
    }

    /// Waits for all requests in flight. Offers no more.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn drain(&mut self) -> Result<End> {
        self.work(None, false)
    }

    /// Offers requests until all slots are in use, with or without a backend.
    ///
    /// # Errors
    /// [`Error::Full`] if the shape contradicts itself.
    pub fn offer(&mut self) -> Result<()> {
        let event_idx = self.event_idx();
        for queue in &mut self.queues {
            while queue.has_room() {
                let planned_request = draw(&mut self.random, &mut self.content, &self.shape);
                queue.put(&self.memory, planned_request)?;
            }
            queue.publish(&self.memory, event_idx)?;
        }
        Ok(())
    }

    /// Waits for all requests in flight, then reads the whole disk and compares it.
    ///
    /// # Errors
    /// As [`Self::run`]; [`Error::Closed`] if the connection ends meanwhile.
    pub fn finish(&mut self) -> Result<()> {
        let event_idx = self.event_idx();
        let mut first = 0;
        loop {
            if self.drain()? == End::Closed {
                return Err(Error::Closed { what: "the comparison of the disk".into() });
            }
            if first == self.content.blocks() {
                return Ok(());
            }
            for queue in &mut self.queues {
                while queue.has_room() && first < self.content.blocks() {
                    let left = u32::try_from(self.content.blocks() - first).unwrap_or(u32::MAX);
                    let range = Range { first, count: left.min(self.shape.blocks_max) };
                    let planned_request = read(range);
                    self.content.claim(range, planned_request.effect);
                    queue.put(&self.memory, planned_request)?;
                    first += u64::from(range.count);
                }
                queue.publish(&self.memory, event_idx)?;
            }
        }
    }

    /// Compares a raw image of the disk. No request is in flight.
    ///
    /// # Errors
    /// [`Error::Reply`] if its content is wrong, [`Error::Io`] if it cannot be read.
    pub fn compare_image(&self, path: &Path) -> Result<()> {
        let image = std::fs::read(path);
        let image = image.map_err(|e| Error::io("cannot read an image", e))?;
        let blocks = image.len() as u64 / BLOCK_BYTES;
        if blocks != self.content.blocks() {
            let what = format!("{blocks} blocks, not {}", self.content.blocks());
            return Err(Error::Reply { request: "the size of an image".into(), what });
        }
        (0..)
            .zip(image.chunks(BLOCK_BYTES as usize))
            .try_for_each(|(first, block)| self.content.compare(Range { first, count: 1 }, block))
    }

    /// Fills every queue and returns at the moment when a request completes, or at `until`. If the
    /// caller then kills the backend, it dies among its stores.
    ///
    /// # Errors
    /// As [`Self::offer`].
    pub fn run_to_completion(&mut self, until: Instant) -> Result<()> {
        self.offer()?;
        while Instant::now() < until {
            for queue in &self.queues {
                if queue.ring.used_idx(&self.memory)? != queue.ring.used_seen {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Disconnects from the backend. Requests in flight stay in flight.
    pub fn hang_up(&mut self) {
        if self.frontend.take().is_some() {
            self.tally.survived += self.outstanding() as u64;
            for queue in &mut self.queues {
                queue.outage.get_or_insert_with(Instant::now);
            }
        }
    }

    fn event_idx(&self) -> bool {
        self.negotiated.features & feature::RING_EVENT_IDX != 0
    }

    fn work(&mut self, until: Option<Instant>, offers: bool) -> Result<End> {
        let mut progress = Instant::now();
        loop {
            if offers {
                self.offer()?;
            } else if self.outstanding() == 0 {
                return Ok(End::Drained);
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(End::Time);
            }
            let lost_at = progress + LOST_AFTER;
            let wake = until.map_or(lost_at, |until| until.min(lost_at));
            match self.wait(wake.saturating_duration_since(now))? {
                Woken::Called => {
                    for index in 0..self.queues.len() {
                        if self.collect(index)? > 0 {
                            progress = Instant::now();
                        }
                    }
                }
                Woken::Closed => {
                    self.hang_up();
                    return Ok(End::Closed);
                }
                Woken::Broken(index) => {
                    let what = format!("queue {index} was abandoned");
                    return Err(Error::Reply { request: "the load".into(), what });
                }
                Woken::Nobody if Instant::now() >= lost_at => {
                    let what = format!("{} requests, or for a call", self.outstanding());
                    return Err(Error::Timeout { what, after_ms: LOST_AFTER.as_millis() });
                }
                Woken::Nobody => {}
            }
        }
    }

    /// Sleeps until a queue is called or broken, or the connection ends. Does not sleep while a
    /// called queue has more completions.
    fn wait(&mut self, time: Duration) -> Result<Woken> {
        let Some(frontend) = &self.frontend else { return Ok(Woken::Closed) };
        let calls = self.queues.iter().map(|queue| queue.call.as_fd());
        let errors = self.queues.iter().map(|queue| queue.err.as_fd());
        let fds = calls.chain(errors).chain([frontend.connection.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let awake = self.queues.iter().any(|queue| queue.called.is_some());
        let time = if awake { Duration::ZERO } else { time };
        let timeout = Timespec::try_from(time)
            .map_err(|_| Error::Full { what: "a deadline of many years".into() })?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("cannot wait for the backend", error)),
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (calls, others) = ready.split_at(self.queues.len());
        let now = Instant::now();
        for (queue, _) in self.queues.iter_mut().zip(calls).filter(|(_, ready)| **ready) {
            queue.called.get_or_insert(now);
        }
        if self.queues.iter().any(|queue| queue.called.is_some()) {
            return Ok(Woken::Called);
        }
        Ok(match others.iter().position(|ready| *ready) {
            None => Woken::Nobody,
            Some(index) if index < self.queues.len() => Woken::Broken(index),
            Some(_) => Woken::Closed,
        })
    }

    /// Collects some completions of a called queue. Requests the next call after the last of them.
    fn collect(&mut self, index: usize) -> Result<u64> {
        let (event_idx, mut count) = (self.event_idx(), 0);
        let Some(queue) = self.queues.get_mut(index) else { return Ok(0) };
        let Some(called) = queue.called else { return Ok(0) };
        drain(&queue.call)?;
        while count < COLLECT_MAX {
            if let Some(used) = queue.ring.pop_used(&self.memory)? {
                let (in_flight_request, data) = queue.take(&self.memory, used)?;
                let longest = &mut self.tally.longest_request;
                *longest = in_flight_request.offered.elapsed().max(*longest);
                if !data.is_empty() {
                    self.content.compare(in_flight_request.range, &data)?;
                    self.tally.compared += 1;
                }
                self.content.settle(in_flight_request.range, in_flight_request.effect);
                count += 1;
                continue;
            }
            if event_idx {
                queue.ring.set_used_event(&self.memory, queue.ring.used_seen)?;
            }
            if queue.ring.used_idx(&self.memory)? == queue.ring.used_seen {
                queue.called = None;
                break;
            }
        }
        self.tally.completed += count;
        // Completions by the former backend do not end the pause.
        if queue.ring.used_seen.wrapping_sub(queue.resumed).cast_signed() > 0 {
            let since = |began: Instant| called.saturating_duration_since(began);
            self.tally.outages.extend(queue.outage.take().map(since));
            self.tally.pauses.extend(queue.pause.take().map(since));
        }
        Ok(count)
    }
}

/// Event that ended a wait.
enum Woken {
    Called,
    Broken(usize),
    Closed,
    Nobody,
}
