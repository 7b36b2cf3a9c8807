//! Polling statistics of a disk's queues.

use blk::QueueState;
use model::report::{PollReason, PollRefusals, PollStats, QueuePolling};
use reactor::{PollReason as Reason, PollState, SpinRefusal};

use super::microseconds;
use crate::served_disk::ServedDisk;

/// Returns the settings in effect for a disk, with their cost and benefit.
pub(super) fn of(served_disk: &ServedDisk) -> PollStats {
    let state = served_disk.device().poll_state();
    let served =
        served_disk.queues_started() > 0 && served_disk.is_active() && !served_disk.is_paused();
    PollStats {
        set: served_disk.polling(),
        queues: waits(&state, served),
        refused: refusals(&state),
    }
}

/// Returns the polling state of one queue, with its cost and benefit.
pub(super) fn of_queue(queue: &QueueState) -> QueuePolling {
    waits(&queue.poll, queue.served)
}

/// Returns how often polling was refused, by reason.
pub(crate) fn refusals(state: &PollState) -> PollRefusals {
    let [too_long, no_free_cpu, cpu_wanted, budget_used, quota_used] = state.refused;
    PollRefusals { too_long, no_free_cpu, cpu_wanted, budget_used, quota_used }
}

/// Returns the polling state of queues that are served now or were served before.
pub(crate) fn waits(state: &PollState, served: bool) -> QueuePolling {
    QueuePolling {
        // A queue that is not served any more shows its last state.
        polling: state.armed() && served,
        reason: reason(state.reason),
        hits: state.hits,
        misses: state.misses,
        poll_seconds: state.spun_ns as f64 / 1e9,
        saved_wakeup_us: microseconds(state.saved_ns),
    }
}

fn reason(reason: Reason) -> PollReason {
    match reason {
        Reason::Unknown => PollReason::Never,
        Reason::Off => PollReason::Off,
        Reason::Always => PollReason::Always,
        Reason::Probing => PollReason::Probing,
        Reason::Pays => PollReason::Pays,
        Reason::Refused(SpinRefusal::TooLong) => PollReason::TooLong,
        Reason::Refused(SpinRefusal::NoFreeCpu) => PollReason::NoFreeCpu,
        Reason::Refused(SpinRefusal::CpuWanted) => PollReason::CpuWanted,
        Reason::Refused(SpinRefusal::BudgetUsed) => PollReason::BudgetUsed,
        Reason::Refused(SpinRefusal::QuotaUsed) => PollReason::QuotaUsed,
    }
}
