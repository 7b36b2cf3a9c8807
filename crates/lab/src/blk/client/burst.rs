//! Short bursts of load on the calling thread.
//!
//! For a comparison of neighbours: between two bursts, no thread starts, wakes or waits. All
//! requests of a burst complete before it ends.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::offsets::Offsets;
use super::{ClientQueue, Load, PATIENCE, Window, submit};
use testkit::driver::Queue;

/// Turns of the loop between two readings of the clock: some microseconds.
const TURNS: u32 = 64;

/// Polling client of one queue.
pub(in crate::blk) struct Burst {
    queue: Queue,
    load: Load,
    offsets: Offsets,
    freed: Vec<u16>,
    errors: u64,
}

/// Result of one burst.
#[derive(Debug, Clone, Copy)]
pub(in crate::blk) struct BurstResult {
    pub(in crate::blk) requests: u64,
    pub(in crate::blk) kicks: u64,
    pub(in crate::blk) seconds: f64,
}

impl Burst {
    pub(in crate::blk) fn new(client_queue: ClientQueue, load: Load) -> Self {
        let ClientQueue { mut queue, disk_bytes, cpu: _ } = client_queue;
        queue.want_calls(false);
        let offsets = Offsets::new(load, disk_bytes / load.bytes as u64, 0);
        Self { queue, load, offsets, freed: (0..load.depth).collect(), errors: 0 }
    }

    /// Sends requests for the length of the window, then waits until all have completed.
    ///
    /// # Errors
    /// The backend fails a request or stops responding.
    pub(in crate::blk) fn run(&mut self, window: Window) -> Result<BurstResult> {
        self.offer()?;
        self.until(window.warm)?;
        let (begin, kicks) = (Instant::now(), self.queue.kicks);
        let requests = self.until(window.measure)?;
        let (seconds, kicks) = (begin.elapsed().as_secs_f64(), self.queue.kicks - kicks);
        self.drain()?;
        ensure!(self.errors == 0, "{} requests failed", self.errors);
        Ok(BurstResult { requests, kicks, seconds })
    }

    /// Keeps requests in flight until the time is over and at least one has completed. Returns the
    /// number of completed requests.
    fn until(&mut self, time: Duration) -> Result<u64> {
        let (begin, mut requests) = (Instant::now(), 0);
        while requests == 0 || begin.elapsed() < time {
            for _ in 0..TURNS {
                let done = self.reap();
                requests += u64::from(done);
                if done > 0 {
                    self.offer()?;
                }
            }
            let answers = requests > 0 || begin.elapsed() < PATIENCE;
            ensure!(answers, "the backend stopped answering");
        }
        Ok(requests)
    }

    fn drain(&mut self) -> Result<()> {
        let begin = Instant::now();
        while self.freed.len() < usize::from(self.load.depth) {
            self.reap();
            ensure!(begin.elapsed() < PATIENCE, "the backend stopped answering");
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> u32 {
        let Self { queue, freed, errors, .. } = self;
        queue.completions(|slot, ret| {
            freed.push(slot);
            *errors += u64::from(ret != 0);
        })
    }

    /// Submits a request in every freed slot, then kicks once.
    #[inline]
    fn offer(&mut self) -> Result<()> {
        for slot in self.freed.drain(..) {
            submit(&mut self.queue, self.load, self.offsets.next()?, slot)?;
        }
        self.queue.kick()?;
        Ok(())
    }
}
