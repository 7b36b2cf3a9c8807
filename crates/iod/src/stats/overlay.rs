//! Statistics of overlays.

use disk::OverlayCounts;
use model::report::OverlayStats;

/// Converts counts to their report type.
pub(super) fn of(counts: OverlayCounts) -> OverlayStats {
    let stats = OverlayStats {
        ram_bytes: counts.ram_bytes,
        ram_used_bytes: counts.ram_used_bytes,
        has_overflow: counts.has_overflow,
        overflow_used_bytes: counts.overflow_used_bytes,
        overflow_limit_bytes: counts.overflow_limit_bytes,
        overflow_size_bytes: counts.overflow_size_bytes,
        file_limit_bytes: counts.file_limit_bytes,
        moved_bytes: counts.moved_bytes,
        hits: counts.memory_reads,
        overflow_reads: counts.overflow_reads,
        base_reads: counts.base_reads,
        bytes_per_second: counts.bytes_per_second,
        full_in_seconds: None,
        waits: counts.waits,
        waiting_bytes: counts.waiting_bytes,
        overflow_errors: counts.overflow_errors,
        is_full: counts.is_full,
    };
    stats.with_forecast()
}
