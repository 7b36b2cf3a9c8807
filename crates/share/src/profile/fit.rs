//! Profile from the samples of a calibration.

use std::ops::RangeInclusive;

use super::{Cost, OpKind, Piece, Profile, SECOND, Turn};
use crate::error::ShareError;

/// Smallest request that counts, and smallest piece, in bytes.
const BYTES_MIN: u64 = 4 << 10;
/// Largest request whose knee counts, in bytes: guests send few larger ones at depth.
const KNEE_BYTES_MAX: u64 = 128 << 10;
/// Large requests, in bytes: their depth is the least number of requests, and they may be split.
const LARGE_BYTES: RangeInclusive<u64> = 256 << 10..=1 << 20;
/// Part of the best throughput that the knee reaches, in percent.
const KNEE_PERCENT: u64 = 95;
/// The knee is at most this many times the time of a request alone.
const KNEE_LATENCIES_MAX: u64 = 16;
/// Least gain for which requests are split.
pub(super) const GAIN_MIN: f64 = 1.1;
/// Part of the best gain that larger pieces reach.
const GAIN_NEAR_BEST: f64 = 0.97;
/// Nanoseconds of a second.
const NS: f64 = SECOND as f64;

/// Throughput of one pattern: so many requests in flight, each split into so many pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// [`OpKind::Read`] or [`OpKind::Write`].
    pub kind: OpKind,
    /// Bytes of a request.
    pub bytes: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Pieces of a request; 1 for whole requests.
    pub pieces: u64,
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// Typical latency of a request in nanoseconds.
    pub latency_ns: u64,
}

/// Samples of one kind.
struct Samples<'a>(Vec<&'a Sample>);

impl Profile {
    /// Computes a profile from samples. It needs reads and writes, of at least two sizes for the cost
    /// of a request. Only sizes whose depths go up to where throughput no longer grows tell the
    /// device's limit, unless there are none. `turn` is set for a device that seeks.
    ///
    /// # Errors
    /// Samples are missing, or a result is outside of its range.
    pub fn fit(samples: &[Sample], turn: Option<Turn>) -> Result<Self, ShareError> {
        let (reads, writes) = (OpKind::Read, OpKind::Write);
        let [reads, writes] = [reads, writes].map(|kind| Samples::of_kind(samples, kind));
        let read = reads.cost().ok_or(ShareError::Samples("reads"))?;
        let write = writes.cost().ok_or(ShareError::Samples("writes"))?;
        let knees = [(&reads, read), (&writes, write)].map(|(samples, cost)| samples.knee(cost));
        let (knee_ns, latency_ns) = knees.into_iter().flatten().max().unwrap_or_default();
        let requests_min = reads.depth_of_large().max(writes.depth_of_large());
        let profile = Self {
            read,
            write,
            flush_ns: write.request_ns.saturating_mul(4).min(SECOND),
            knee_ns: knee_ns.max(reads.latency_alone()).max(1000),
            requests_min: requests_min.clamp(2, 1024),
            latency_ns,
            piece: turn.is_none().then(|| reads.piece()).flatten(),
            turn,
        };
        profile.check().map(|()| profile)
    }
}

impl<'a> Samples<'a> {
    fn of_kind(samples: &'a [Sample], kind: OpKind) -> Self {
        let of_kind = samples.iter().filter(|sample| {
            sample.kind == kind && sample.bytes >= BYTES_MIN && sample.bytes_per_second > 0
        });
        Self(of_kind.collect())
    }

    fn whole(&self) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().copied().filter(|sample| sample.pieces == 1)
    }

    fn of_size(&self, bytes: u64) -> impl Iterator<Item = &'a Sample> {
        self.whole().filter(move |sample| sample.bytes == bytes)
    }

    /// Returns the sizes of whole requests in ascending order.
    fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<_> = self.whole().map(|sample| sample.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Returns the sizes at which more requests at a time were not faster: their best is the device's
    /// limit. Returns all sizes if there is none.
    fn sizes_at_limit(&self) -> Vec<u64> {
        let all = self.sizes();
        let is_at_limit = |bytes: &u64| {
            let deepest = self.of_size(*bytes).map(|sample| sample.depth).max();
            self.at_knee(*bytes).map(|sample| sample.depth) < deepest
        };
        let some: Vec<_> = all.iter().copied().filter(is_at_limit).collect();
        if some.is_empty() { all } else { some }
    }

    /// Returns the best throughput of a size in bytes a second.
    fn best(&self, bytes: u64) -> Option<u64> {
        self.of_size(bytes).map(|sample| sample.bytes_per_second).max()
    }

    /// Returns the sample with the fewest requests of a size that reaches [`KNEE_PERCENT`] of the best.
    fn at_knee(&self, bytes: u64) -> Option<&'a Sample> {
        let least = u128::from(self.best(bytes)?) * u128::from(KNEE_PERCENT);
        let fine = self.of_size(bytes).filter(|s| u128::from(s.bytes_per_second) * 100 >= least);
        fine.min_by_key(|sample| sample.depth)
    }

    fn alone(&self, bytes: u64) -> Option<&'a Sample> {
        self.of_size(bytes).find(|sample| sample.depth == 1)
    }

    /// Returns the latency of one small request alone, or 0 without such a sample.
    fn latency_alone(&self) -> u64 {
        let smallest = self.sizes().first().copied();
        smallest.and_then(|bytes| self.alone(bytes)).map_or(0, |sample| sample.latency_ns)
    }

    /// Returns the smallest depth at which all large requests are about as fast as the best.
    fn depth_of_large(&self) -> u64 {
        let large = self.sizes().into_iter().filter(|bytes| LARGE_BYTES.contains(bytes));
        // Other depths without a request alone show no knee.
        let large = large.filter(|bytes| self.alone(*bytes).is_some());
        large.filter_map(|bytes| Some(self.at_knee(bytes)?.depth)).max().unwrap_or(0)
    }

    /// Returns the device time in flight at the knee, and the latency there: those of the size that
    /// needs most.
    fn knee(&self, cost: Cost) -> Option<(u64, u64)> {
        let of_size = |bytes: u64| {
            let knee = self.at_knee(bytes)?;
            let alone = self.alone(bytes)?.latency_ns;
            let cost = cost.of(bytes).saturating_mul(knee.depth);
            // A device that always has work needs as much as it does while one request takes (Little
            // 1961), and several times that if requests collide on its channels. Results that
            // scatter could make it far more.
            Some((cost.min(alone.saturating_mul(KNEE_LATENCIES_MAX)), knee.latency_ns))
        };
        let sizes = self.sizes_at_limit().into_iter().filter(|bytes| *bytes <= KNEE_BYTES_MAX);
        sizes.filter_map(of_size).max()
    }

    /// Computes the costs of a request and a byte: the line through the device times of all sizes at
    /// the device's limit, by least squares of the relative error.
    fn cost(&self) -> Option<Cost> {
        let time = |bytes: u64| {
            let best = self.best(bytes)?;
            Some((bytes as f64, bytes as f64 * NS / best as f64))
        };
        let times: Vec<(f64, f64)> = self.sizes_at_limit().into_iter().filter_map(time).collect();
        // Without a second size, all time belongs to the bytes.
        let (mut request, mut byte) = match times.as_slice() {
            [] => return None,
            [(bytes, ns)] => (0.0, ns / bytes),
            _ => line(&times),
        };
        if request < 0.0 {
            (request, byte) = (0.0, slope(times.iter().map(|(bytes, ns)| bytes / ns)));
        } else if byte < 0.0 {
            (request, byte) = (slope(times.iter().map(|(_, ns)| 1.0 / ns)), 0.0);
        }
        let request_ns = (request.round() as u64).max(1);
        Some(Cost { request_ns, byte_ps: (byte * 1000.0).round() as u64 })
    }

    /// Returns the largest piece whose gain for single large requests is nearly the best, if the
    /// device gains from splitting.
    fn piece(&self) -> Option<Piece> {
        let single = || self.0.iter().filter(|s| s.depth == 1 && LARGE_BYTES.contains(&s.bytes));
        let mut pieces: Vec<_> = single()
            .filter(|sample| sample.pieces > 1)
            .filter_map(|sample| sample.bytes.checked_div(sample.pieces))
            .filter(|bytes| *bytes >= BYTES_MIN && bytes % 512 == 0)
            .collect();
        pieces.sort_unstable();
        pieces.dedup();
        let gain_of = |bytes: u64| {
            let gains = single().filter(|sample| sample.pieces == 1).filter_map(|whole| {
                if whole.bytes <= bytes {
                    return Some(1.0);
                }
                let mut split = single().filter(|sample| sample.bytes == whole.bytes);
                let split = split.find(|s| s.pieces.checked_mul(bytes) == Some(s.bytes))?;
                Some(split.bytes_per_second as f64 / whole.bytes_per_second as f64)
            });
            mean(gains.collect())
        };
        let gains: Vec<_> =
            pieces.into_iter().filter_map(|bytes| Some((bytes, gain_of(bytes)?))).collect();
        let best = gains.iter().map(|(_, gain)| *gain).fold(GAIN_MIN, f64::max);
        let (bytes, gain) =
            gains.into_iter().rfind(|(_, gain)| *gain >= (best * GAIN_NEAR_BEST).max(GAIN_MIN))?;
        Some(Piece { bytes, gain_percent: ((gain - 1.0) * 100.0) as u64 })
    }
}

/// Returns the geometric mean, or `None` without factors.
fn mean(factors: Vec<f64>) -> Option<f64> {
    let sum: f64 = factors.iter().map(|factor| factor.ln()).sum();
    (!factors.is_empty()).then(|| (sum / factors.len() as f64).exp())
}

/// Returns `a` and `b` for which the relative errors of `a + b * x` are smallest.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    // Normal equations of 1 = a / y + b * x / y.
    let sum =
        |term: fn(f64, f64) -> f64| points.iter().map(|(x, y)| term(1.0 / y, x / y)).sum::<f64>();
    let (uu, uv, vv) = (sum(|u, _| u * u), sum(|u, v| u * v), sum(|_, v| v * v));
    let (u, v) = (sum(|u, _| u), sum(|_, v| v));
    let determinant = uu * vv - uv * uv;
    ((u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant)
}

/// Returns `c` for which the errors of `c * x` against 1 are smallest.
fn slope(points: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = points.fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum / squares
}
