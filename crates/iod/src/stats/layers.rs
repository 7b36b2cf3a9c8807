//! Statistics of layers with a map.

use disk::LayerCounts;
use model::report::LayerStats;

use super::requests::seconds;

/// Converts counts to their report type.
pub(super) fn of(counts: LayerCounts) -> LayerStats {
    LayerStats {
        count: counts.layers,
        questions: counts.questions,
        answers: counts.answers,
        rounds: counts.rounds,
        allocations: counts.allocations,
        fills: counts.fills,
        read_modify_writes: counts.read_modify_writes,
        wait_seconds: seconds(counts.wait_ns),
        map_pages: counts.pages,
        limbo_bytes: counts.limbo_bytes,
        held_bytes: counts.held_bytes,
        held_seconds: seconds(counts.held_ns),
    }
}
