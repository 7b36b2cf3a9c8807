//! Statistics of golden images.

use disk::CacheState;
use model::report::GoldenStats;

/// Converts the state of a cache to its report type.
pub(super) fn of(state: CacheState) -> GoldenStats {
    let CacheState { identity, hits, misses, loaded, fetched, fetched_bytes, evicted, problem } =
        state;
    GoldenStats { identity, hits, misses, loaded, fetched, fetched_bytes, evicted, problem }
}
