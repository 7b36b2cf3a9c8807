//! Confirmation that a device gains from splitting.
//!
//! The matrix has one sample of each pattern. On a device whose throughput varies, one of several
//! patterns is faster by chance, and each split costs a disk time. So whole and split requests are
//! measured again, in turn.

use super::Piece;
use super::fit::GAIN_MIN;

/// Size of the request that is measured whole and in pieces, in bytes.
pub const CONFIRM_BYTES: u64 = 1 << 20;
/// Samples of each, at most.
pub const CONFIRM_ROUNDS: usize = 5;

impl Piece {
    /// Confirms the gain: each sample of split requests is faster than all samples of whole ones, and
    /// the median by a tenth at least. `measure` returns the throughput of one request of
    /// [`CONFIRM_BYTES`] at a time in so many pieces. Returns the piece with the median gain, or `None`
    /// if the gain is not larger than the spread of the samples.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn confirm<E>(
        self,
        mut measure: impl FnMut(u64) -> Result<u64, E>,
    ) -> Result<Option<Self>, E> {
        let pieces = CONFIRM_BYTES / self.bytes.clamp(1, CONFIRM_BYTES);
        let (mut whole, mut split) = (Vec::new(), Vec::new());
        for round in 0..CONFIRM_ROUNDS {
            // In turn, so that a device which becomes slower meanwhile favours neither.
            let first = if round % 2 == 0 { 1 } else { pieces };
            for count in [first, pieces + 1 - first] {
                let samples = if count == 1 { &mut whole } else { &mut split };
                samples.push(measure(count)?);
            }
            if split.iter().min() <= whole.iter().max() {
                return Ok(None);
            }
        }
        let gain = median(split) as f64 / median(whole).max(1) as f64;
        let gain_percent = ((gain - 1.0) * 100.0) as u64;
        Ok((gain >= GAIN_MIN).then_some(Self { gain_percent, ..self }))
    }
}

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::device::{Flash, Model, Pipe, Random, sample, samples};
    use crate::profile::{OpKind, Profile, Sample};

    /// Counts the seeds of which a profile would split, and those that the confirmation leaves, on a
    /// device whose throughput varies by `noise` percent in both directions.
    fn count(model: Model, noise: u64, seeds: u64) -> [u64; 2] {
        let exact = samples(model);
        let rates = [1, 2, 4, 8, 16, 32, 64, 128, 256].map(|pieces| {
            let sample = sample(&model.into(), OpKind::Read, CONFIRM_BYTES, 1, pieces);
            (pieces, sample.bytes_per_second)
        });
        let mut counts = [0; 2];
        for seed in 0..seeds {
            let mut random = Random::new(seed);
            let mut noisy = |rate: u64| rate * (100 - noise + random.below(2 * noise + 1)) / 100;
            let varied = |sample: &Sample| Sample {
                bytes_per_second: noisy(sample.bytes_per_second),
                ..*sample
            };
            let varied: Vec<_> = exact.iter().map(varied).collect();
            let Some(piece) = Profile::fit(&varied, None).unwrap().piece else { continue };
            counts[0] += 1;
            let confirmed = piece.confirm(|pieces| {
                let rate = rates.iter().find(|(count, _)| *count == pieces).unwrap().1;
                Ok::<_, Infallible>(noisy(rate))
            });
            counts[1] += u64::from(confirmed.unwrap().is_some());
        }
        counts
    }

    #[test]
    fn noise_is_no_reason_to_split() {
        let [fitted, confirmed] = count(Model::Flash(Flash::UNSTRIPED), 30, 2000);
        assert!(fitted > 1000, "noise fools the matrix: {fitted}");
        assert!(confirmed <= 20, "{confirmed} of {fitted}");
    }

    #[test]
    fn a_gain_is_found_in_noise() {
        for model in [Model::Flash(Flash::STRIPED), Model::Pipe(Pipe::ARRAY)] {
            let [fitted, confirmed] = count(model, 8, 200);
            assert!(fitted >= 195 && confirmed >= 190, "{model:?}: {confirmed} of {fitted}");
        }
    }

    #[test]
    fn a_drift_of_the_device_is_no_gain() {
        let (mut rate, piece) = (1_000_000.0, Piece { bytes: 64 << 10, gain_percent: 50 });
        let confirmed = piece.confirm(|_| {
            rate *= 1.2;
            Ok::<_, Infallible>(rate as u64)
        });
        assert_eq!(confirmed, Ok(None));
    }

    #[test]
    fn the_gain_is_that_of_the_confirmation() {
        let piece = Piece { bytes: 64 << 10, gain_percent: 300 };
        let confirm =
            |split| piece.confirm(|pieces| Ok::<_, ()>(if pieces == 1 { 100 } else { split }));
        assert_eq!(confirm(150), Ok(Some(Piece { gain_percent: 50, ..piece })));
        assert_eq!(confirm(105), Ok(None));
        assert_eq!(piece.confirm(|_| Err::<u64, _>("stopped")), Err("stopped"));
    }
}
