//! Measurement in slices, of which only the least disturbed count.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cpu_speed::UNDISTURBED;
use crate::experiment::Sample;

/// Slices whose mean counts.
pub const SLICES: usize = 3;
/// Most slices that are measured.
const MOST: usize = 30;
/// Starts whose mean is one sample. Each start places its buffers anew, which changes how many of
/// them fit in caches.
pub const STARTS: usize = 4;

/// Slice of a measurement, with the speed of the CPUs.
#[derive(Debug)]
pub struct Slice {
    /// Lower speed of before and after the slice, see [`crate::cpu_speed::CpuPairSpeed::now`].
    pub pace: f64,
    /// Values of the slice.
    pub sample: Sample,
}

/// Returns the mean of the least disturbed slices, with the lowest speed among them. Waits at most
/// `patience` for undisturbed slices. `take` measures one slice and receives the time until which
/// it may wait.
///
/// # Errors
/// `take` fails.
pub fn least_disturbed(
    patience: Duration,
    mut take: impl FnMut(Instant) -> Result<Slice>,
) -> Result<Sample> {
    let until = Instant::now() + patience;
    let mut slices: Vec<Slice> = Vec::new();
    let good = |slices: &[Slice]| slices.iter().filter(|s| s.pace >= UNDISTURBED).count();
    while slices.len() < SLICES
        || (good(&slices) < SLICES && slices.len() < MOST && Instant::now() < until)
    {
        slices.push(take(until)?);
    }
    Ok(best(slices))
}

/// Selects the slices by CPU speed alone. The measured values play no part in the choice.
fn best(mut slices: Vec<Slice>) -> Sample {
    slices.sort_by(|a, b| b.pace.total_cmp(&a.pace));
    slices.truncate(SLICES);
    let pace = slices.last().map_or(0.0, |slice| slice.pace);
    let mut sample = mean(slices.into_iter().map(|slice| slice.sample).collect());
    sample.insert("pace".to_owned(), pace);
    sample
}

/// Returns the mean of several starts, each of which may wait up to `patience`. A quick run has one
/// start and does not wait.
///
/// # Errors
/// `start` fails.
pub fn of_starts(
    quick: bool,
    patience: Duration,
    start: impl FnMut(Duration) -> Result<Sample>,
) -> Result<Sample> {
    let waits = if quick { vec![Duration::ZERO] } else { vec![patience; STARTS] };
    waits.into_iter().map(start).collect::<Result<_>>().map(mean)
}

/// Returns the mean of each metric. All samples must have the same metrics.
fn mean(samples: Vec<Sample>) -> Sample {
    let count = samples.len() as f64;
    let mut all = Sample::new();
    for (name, value) in samples.into_iter().flatten() {
        *all.entry(name).or_default() += value / count;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rate: f64) -> Sample {
        Sample::from([("rate".to_owned(), rate), ("same".to_owned(), 2.0)])
    }

    #[test]
    fn a_sample_is_the_mean_of_what_was_least_disturbed() {
        let both = mean(vec![of(1.0), of(4.0)]);
        assert_eq!((both["rate"], both["same"], both.len()), (2.5, 2.0, 2));
        let paces = [(0.6, 90.0), (0.97, 1.0), (0.99, 2.0), (0.5, 0.0), (0.96, 6.0)];
        let slices = paces.map(|(pace, rate)| Slice { pace, sample: of(rate) });
        let chosen = best(slices.into());
        assert_eq!((chosen["rate"], chosen["same"], chosen["pace"]), (3.0, 2.0, 0.96));
    }

    #[test]
    fn a_quick_run_starts_once_and_waits_for_nothing() {
        let started = |quick| {
            let mut waits = Vec::new();
            let start = |patience| {
                waits.push(patience);
                Ok(of(waits.len() as f64))
            };
            (of_starts(quick, Duration::from_secs(2), start).unwrap()["rate"], waits)
        };
        assert_eq!(started(true), (1.0, vec![Duration::ZERO]));
        assert_eq!(started(false), (2.5, vec![Duration::from_secs(2); STARTS]));
    }

    #[test]
    fn undisturbed_slices_are_waited_for_and_not_for_ever() {
        let taken = |patience, paces: &[f64]| {
            let mut count = 0;
            let take = |_| {
                let pace = paces[count % paces.len()];
                count += 1;
                Ok(Slice { pace, sample: of(pace) })
            };
            (least_disturbed(patience, take).unwrap()["pace"], count)
        };
        let long = Duration::from_secs(600);
        assert_eq!(taken(long, &[1.0]), (1.0, SLICES));
        assert_eq!(taken(long, &[0.5, 0.95]), (0.95, 2 * SLICES));
        assert_eq!(taken(long, &[0.5]), (0.5, MOST));
        assert_eq!(taken(Duration::ZERO, &[0.5, 0.95]), (0.5, SLICES));
    }
}
