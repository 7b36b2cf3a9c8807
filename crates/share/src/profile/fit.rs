//! Profile from the samples of a calibration.

use super::{Cost, Op, OpKind, Piece, Profile, SECOND, Turn};
use crate::error::ShareError;

/// Largest request whose knee counts, in bytes: guests send few larger ones at depth.
const KNEE_BYTES_MAX: u64 = 128 << 10;
/// Part of the best throughput that the knee reaches, in percent.
const KNEE_PERCENT: u64 = 95;
/// Least gain in percent for which requests are split.
const GAIN_PERCENT_MIN: u64 = 10;
/// Loss against the best piece that larger pieces may have, in percent.
const PIECE_LOSS_PERCENT: u64 = 3;

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
    /// Mean latency of a request in nanoseconds.
    pub latency_ns: u64,
}

impl Profile {
    /// Computes a profile from samples. It needs reads and writes of at least two sizes, each with
    /// depths up to where throughput no longer grows. `turn` is set for a device that seeks; its
    /// samples are sequential.
    ///
    /// # Errors
    /// Samples are missing, or a result is outside of its range.
    pub fn fit(samples: &[Sample], turn: Option<Turn>) -> Result<Self, ShareError> {
        let read = fit_cost(samples, OpKind::Read).ok_or(ShareError::Samples("reads"))?;
        let write = fit_cost(samples, OpKind::Write).ok_or(ShareError::Samples("writes"))?;
        let knees = knees(samples);
        let largest = knees.iter().max_by_key(|sample| sample.bytes);
        let profile = Self {
            read,
            write,
            flush_ns: write.request_ns.saturating_mul(4).min(SECOND),
            knee_ns: 0,
            requests_min: largest.map_or(2, |sample| sample.depth.clamp(2, 1024)),
            latency_ns: 0,
            piece: turn.is_none().then(|| fit_piece(samples)).flatten(),
            turn,
        };
        let cost = |sample: &Sample| profile.cost(Op::new(OpKind::Read, sample.bytes));
        let small = knees.iter().filter(|sample| sample.bytes <= KNEE_BYTES_MAX);
        let knee = small.map(|sample| (sample.depth * cost(sample), sample.latency_ns)).max();
        let (knee, latency_ns) = knee.ok_or(ShareError::Samples("reads"))?;
        let profile = Self { knee_ns: knee.max(1000), latency_ns, ..profile };
        profile.check().map(|()| profile)
    }
}

/// Returns the sample at the knee of each size: the one with the fewest reads in flight that reaches
/// [`KNEE_PERCENT`] of the best.
fn knees(samples: &[Sample]) -> Vec<Sample> {
    let mut knees: Vec<Sample> = Vec::new();
    for sample in whole(samples, OpKind::Read) {
        let best = best(samples, OpKind::Read, sample.bytes);
        if sample.bytes_per_second * 100 < best * KNEE_PERCENT {
            continue;
        }
        match knees.iter_mut().find(|other| other.bytes == sample.bytes) {
            Some(other) if sample.depth < other.depth => *other = *sample,
            Some(_) => {}
            None => knees.push(*sample),
        }
    }
    knees
}

fn whole(samples: &[Sample], kind: OpKind) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(move |sample| {
        sample.kind == kind && sample.pieces == 1 && sample.bytes_per_second > 0
    })
}

/// Returns the best throughput of a size.
fn best(samples: &[Sample], kind: OpKind, bytes: u64) -> u64 {
    let of_size = whole(samples, kind).filter(|sample| sample.bytes == bytes);
    of_size.map(|sample| sample.bytes_per_second).max().unwrap_or(0)
}

/// Computes the costs of a request and a byte from the smallest and the largest size.
fn fit_cost(samples: &[Sample], kind: OpKind) -> Option<Cost> {
    let sizes = || whole(samples, kind).map(|sample| sample.bytes);
    let (small, large) = (sizes().min()?, sizes().max()?);
    let ps = |bytes| {
        let ps = u128::from(bytes) * u128::from(SECOND) * 1000;
        u64::try_from(ps / u128::from(best(samples, kind, bytes).max(1))).ok()
    };
    let (small_ps, large_ps) = (ps(small)?, ps(large)?);
    let byte_ps = large_ps.checked_sub(small_ps)? / (large - small).max(1);
    let request_ns = small_ps.saturating_sub(small * byte_ps) / 1000;
    Some(Cost { request_ns: request_ns.max(1), byte_ps })
}

/// Returns the largest piece that is nearly the best, if the device gains from splitting the
/// requests that were sampled.
fn fit_piece(samples: &[Sample]) -> Option<Piece> {
    let single = || samples.iter().filter(|s| s.kind == OpKind::Read && s.depth == 1);
    let bytes = single().filter(|sample| sample.pieces > 1).map(|sample| sample.bytes).max()?;
    let of_size = || single().filter(|sample| sample.bytes == bytes);
    let rate = |sample: &Sample| sample.bytes_per_second;
    let whole = of_size().find(|sample| sample.pieces == 1).map(rate)?;
    let most = of_size().map(rate).max()?;
    let fine = of_size().filter(|s| rate(s) * 100 >= most * (100 - PIECE_LOSS_PERCENT));
    let piece = fine.min_by_key(|sample| sample.pieces)?;
    let gain_percent = (rate(piece) * 100 / whole.max(1)).saturating_sub(100);
    let bytes = (bytes / piece.pieces) & !511;
    (gain_percent >= GAIN_PERCENT_MIN && bytes > 0).then_some(Piece { bytes, gain_percent })
}
