//! Diagnosis of a disk: the order of its causes.

use super::{
    DiskFacts, DiskVerdict, flow, history, layers, overlay, polling, restart, share, state,
    storage_errors, wait,
};

/// Test for one cause, or for causes that exclude each other. Returns the verdict if it holds.
type Rule = fn(&DiskFacts<'_>) -> Option<DiskVerdict>;

/// All rules in order. The first that holds is the verdict, so a cause that holds now comes before
/// an event of the past, and a certain cause before one that is judged by its share of the time.
const RULES: [Rule; 26] = [
    // Nothing is served. The storage comes first, because no command helps while it hangs or is
    // full.
    state::fenced,
    state::stuck,
    state::refused,
    layers::limbo,
    overlay::full,
    state::full,
    state::paused,
    state::inactive,
    // The guest does not ask, or not by every ring.
    state::no_front_end,
    state::broken_ring,
    state::no_driver,
    // A request waits now.
    wait::hangs,
    storage_errors::fails,
    // The requests that ended between the samples waited.
    flow::capped_share,
    flow::neighbour,
    flow::no_cpu,
    flow::processor,
    share::waits,
    layers::metadata,
    flow::storage_slow,
    flow::small_writes,
    flow::deep_queue,
    // Nothing holds the disk up now.
    storage_errors::has_failed,
    restart::restarted,
    flow::not_recorded,
    flow::idle,
];

/// Returns the verdict on a disk.
pub fn judge(facts: &DiskFacts<'_>) -> DiskVerdict {
    let verdict = RULES.iter().find_map(|rule| rule(facts));
    let verdict = verdict.unwrap_or_else(|| flow::healthy(facts));
    let verdict = DiskVerdict { overlay: overlay::warning(facts), ..verdict };
    history::annotate(facts, share::annotate(facts, polling::annotate(facts, verdict)))
}
