//! Closed loop: each completed request is followed by another.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use testkit::driver::Queue;

use super::offsets::Offsets;
use super::tally::{Mark, Tally, histogram, record};
use super::{Load, Wait, phase, submit};

/// Runs until told to stop, then drains the requests in flight.
pub(super) fn run(
    queue: Queue,
    load: Load,
    offsets: Offsets,
    think: Duration,
    state: &AtomicU8,
) -> Result<(Tally, Queue)> {
    let client = Client {
        queue,
        load,
        think,
        offsets,
        freed: (0..load.depth).collect(),
        errors: 0,
        sampled: None,
        latency_ns: histogram()?,
    };
    client.run(state)
}

struct Client {
    queue: Queue,
    load: Load,
    think: Duration,
    offsets: Offsets,
    freed: Vec<u16>,
    errors: u64,
    /// Slot of the request whose latency is measured, and its start.
    sampled: Option<(u16, Instant)>,
    latency_ns: Histogram<u64>,
}

impl Client {
    fn run(mut self, state: &AtomicU8) -> Result<(Tally, Queue)> {
        let mut counting = false;
        let (mut requests, mut turns) = (0u64, 0u64);
        let mut since = Mark::now(&self.queue)?;
        let mut until_sample = self.load.sample_every;
        // On a busy host, the first request may be the only one in the window.
        self.submit_freed(true)?;
        loop {
            let done = self.reap();
            turns += 1;
            if done == 0 && self.load.wait == Wait::Sleep {
                self.queue.sleep()?;
            }
            requests += u64::from(done);
            let phase = state.load(Ordering::Relaxed);
            if phase != phase::WARM && !counting {
                // On a busy host, the window may have ended before the client sees its start.
                counting = true;
                (requests, turns) = (0, 0);
                self.latency_ns.reset();
                since = Mark::now(&self.queue)?;
            } else if phase == phase::ABANDON || phase == phase::STOP && requests > 0 {
                break;
            }
            if done > 0 {
                until_sample -= 1;
                let sample = until_sample == 0;
                if sample {
                    until_sample = self.load.sample_every;
                }
                if !self.think.is_zero() {
                    self.ponder();
                }
                self.submit_freed(sample)?;
            }
        }
        let tally = since.tally(&self.queue, &self.latency_ns)?;
        self.drain(state)?;
        Ok((Tally { requests, turns, errors: self.errors, ..tally }, self.queue))
    }

    /// Spins for the think time if no request is in flight.
    fn ponder(&self) {
        if self.freed.len() < usize::from(self.load.depth) {
            return;
        }
        let until = Instant::now() + self.think;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    /// Collects completions and returns their number.
    #[inline]
    fn reap(&mut self) -> u32 {
        let Self { queue, freed, errors, sampled, latency_ns, .. } = self;
        queue.completions(|slot, ret| {
            freed.push(slot);
            *errors += u64::from(ret != 0);
            if let Some((_, start)) = sampled.take_if(|(wanted, _)| *wanted == slot) {
                record(latency_ns, start);
            }
        })
    }

    /// Submits a request in every freed slot, then kicks once.
    #[inline]
    fn submit_freed(&mut self, sample: bool) -> Result<()> {
        if sample && self.sampled.is_none() {
            self.sampled = self.freed.first().map(|slot| (*slot, Instant::now()));
        }
        for slot in self.freed.drain(..) {
            submit(&mut self.queue, self.load, self.offsets.next()?, slot)?;
        }
        self.queue.kick()?;
        Ok(())
    }

    fn drain(&mut self, state: &AtomicU8) -> Result<()> {
        while self.freed.len() < usize::from(self.load.depth) {
            if self.reap() == 0 && self.load.wait == Wait::Sleep {
                self.queue.sleep()?;
            }
            if state.load(Ordering::Relaxed) == phase::ABANDON {
                bail!("the backend stopped answering");
            }
        }
        Ok(())
    }
}
