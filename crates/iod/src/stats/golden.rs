//! Statistics of golden images.

use disk::{CacheState, WarmState};
use model::report::{GoldenStats, WarmPhase, WarmStats};

/// Converts the state of a cache to its report type.
pub(super) fn of(state: CacheState) -> GoldenStats {
    let CacheState { identity, size, file, stored, file_problem, .. } = state;
    let CacheState { hits, misses, loaded, fetched, fetched_bytes, evicted, .. } = state;
    GoldenStats {
        identity,
        size,
        file,
        stored,
        file_problem,
        hits,
        misses,
        loaded,
        fetched,
        fetched_bytes,
        evicted,
        problem: state.problem,
        warm: state.warm.map(warm),
        other_digest: state.other_digest,
        is_verified: state.is_verified,
    }
}

fn warm(state: WarmState) -> WarmStats {
    let phase = match state.phase {
        disk::WarmPhase::Running => WarmPhase::Running,
        disk::WarmPhase::Checking => WarmPhase::Checking,
        disk::WarmPhase::Done => WarmPhase::Done,
        disk::WarmPhase::Canceled => WarmPhase::Canceled,
        disk::WarmPhase::Failed => WarmPhase::Failed,
    };
    WarmStats { phase, rate: state.rate, problem: state.problem }
}
