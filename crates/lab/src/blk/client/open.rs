//! Open loop: each request is sent at its due time.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use testkit::driver::Queue;

use super::offsets::Offsets;
use super::tally::{Mark, Tally, histogram, record};
use super::{Load, phase, submit};

/// Delay after its due time from which a request counts as late. Either no slot was free, or the
/// client was delayed.
const LATE: Duration = Duration::from_micros(10);

/// Times with exponential gaps, the same sequence in every sample.
struct Moments {
    next: Instant,
    mean_s: f64,
    state: u64,
}

impl Moments {
    fn new(per_second: u32) -> Self {
        let mean_s = 1.0 / f64::from(per_second.max(1));
        let mut moments = Self { next: Instant::now(), mean_s, state: 0x2545_f491_4f6c_dd1d };
        moments.advance();
        moments
    }

    fn gap(&mut self) -> Duration {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // From the upper 53 bits: above 0, up to 1.
        let uniform = ((self.state >> 11) + 1) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(-uniform.ln() * self.mean_s)
    }

    fn advance(&mut self) {
        let gap = self.gap();
        self.next += gap;
    }
}

/// Runs until told to stop, then drains the requests in flight. The client polls.
pub(super) fn run(
    mut queue: Queue,
    load: Load,
    mut offsets: Offsets,
    per_second: u32,
    state: &AtomicU8,
) -> Result<(Tally, Queue)> {
    let depth = usize::from(load.depth);
    let mut freed: Vec<u16> = (0..load.depth).collect();
    let mut moments = Moments::new(per_second);
    // Due time of the request in each slot, and whether it was sent late.
    let mut due = vec![(moments.next, false); depth];
    let mut latency_ns = histogram()?;
    let (mut requests, mut turns, mut errors, mut late) = (0u64, 0u64, 0u64, 0u64);
    let mut since = Mark::now(&queue)?;
    let (mut counting, mut stopping) = (false, false);
    loop {
        turns += 1;
        queue.completions(|slot, ret| {
            freed.push(slot);
            errors += u64::from(ret != 0);
            requests += 1;
            let (moment, was_late) = due[usize::from(slot)];
            record(&mut latency_ns, moment);
            late += u64::from(was_late);
        });
        let phase = state.load(Ordering::Relaxed);
        if phase != phase::WARM && !counting {
            counting = true;
            (requests, turns, late) = (0, 0, 0);
            latency_ns.reset();
            since = Mark::now(&queue)?;
        } else if phase == phase::ABANDON {
            bail!("the backend stopped answering");
        }
        if phase == phase::STOP && requests > 0 {
            stopping = true;
        }
        if stopping {
            break;
        }
        let now = Instant::now();
        if moments.next > now {
            continue;
        }
        while moments.next <= now {
            let Some(slot) = freed.pop() else { break };
            due[usize::from(slot)] = (moments.next, now - moments.next > LATE);
            moments.advance();
            submit(&mut queue, load, offsets.next()?, slot)?;
        }
        queue.kick()?;
    }
    let tally = since.tally(&queue, &latency_ns)?;
    while freed.len() < depth {
        queue.completions(|slot, ret| {
            freed.push(slot);
            errors += u64::from(ret != 0);
        });
        if state.load(Ordering::Relaxed) == phase::ABANDON {
            bail!("the backend stopped answering");
        }
    }
    Ok((Tally { requests, turns, errors, late: Some(late), ..tally }, queue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_exponential() {
        let mut moments = Moments::new(1000);
        let gaps: Vec<f64> = (0..20_000).map(|_| moments.gap().as_secs_f64() * 1e3).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        // Of exponential gaps, 1 - 1/e are shorter than the mean, and 1/e^3 are longer than three
        // times the mean.
        let part = |longer: f64| {
            gaps.iter().filter(|gap| **gap > longer).count() as f64 / gaps.len() as f64
        };
        assert!((part(1.0) - 0.368).abs() < 0.02 && (part(3.0) - 0.05).abs() < 0.01);
        assert!(gaps.iter().all(|gap| gap.is_finite() && *gap >= 0.0));
    }
}
