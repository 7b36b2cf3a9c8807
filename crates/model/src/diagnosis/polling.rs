//! Sentence on the polling of a disk.

use super::units::duration;
use super::{Cause, DiskFacts, DiskVerdict};
use crate::report::{DiskStats, PollReason, PollStats, QueuePolling};

/// Adds the polling of the disk's queues to the verdict, if they are served.
pub(super) fn annotate(facts: &DiskFacts<'_>, mut verdict: DiskVerdict) -> DiskVerdict {
    use Cause::{
        Cap, DeepQueue, Healthy, Idle, Neighbour, NoCpu, NotRecorded, Processor, SmallWrites,
        StorageSlow,
    };
    let served = [
        Idle,
        Healthy,
        StorageSlow,
        SmallWrites,
        DeepQueue,
        Cap,
        Neighbour,
        NoCpu,
        Processor,
        NotRecorded,
    ];
    let Some(polling) = facts.disk.polling.filter(|_| served.contains(&verdict.cause)) else {
        return verdict;
    };
    verdict.polling = sentence(facts, &polling);
    if verdict.next.is_none() && verdict.cause != Cause::Idle {
        verdict.next = step(facts, &polling);
    }
    verdict
}

fn sentence(facts: &DiskFacts<'_>, polling: &PollStats) -> Option<String> {
    match polling.queues.reason {
        PollReason::Pays => Some(pays(facts)),
        _ => state_sentence(polling, "requests"),
    }
}

/// Returns the polling state with its reason, for queues that wait for `works`; `None` if unknown.
pub(super) fn state_sentence(polling: &PollStats, works: &str) -> Option<String> {
    let threshold = polling.set.idle_threshold;
    let text = match polling.queues.reason {
        PollReason::Never | PollReason::Unknown => return None,
        PollReason::Pays => "It is polled, which has paid.".into(),
        PollReason::Probing => {
            "A few of its waits are polled, to see whether that pays.".to_owned()
        }
        PollReason::Always => {
            "It is always polled, which takes a whole CPU for each of its reactors.".into()
        }
        PollReason::TooLong => format!(
            "It is not polled: {works} are too far apart for that to pay (a hit may cost {}).",
            duration(f64::from(polling.set.max_us) / 1e6)
        ),
        PollReason::Off => "It is not polled: that is turned off.".into(),
        PollReason::NoFreeCpu => format!(
            "It is not polled because no CPU is free: {threshold}% of one must be free for each \
             reactor that polls for {works}."
        ),
        PollReason::CpuWanted => {
            "It is not polled because other threads want the CPU of its reactor.".into()
        }
        PollReason::BudgetUsed => {
            "It is not polled for now: polls that found nothing have used up their budget.".into()
        }
        PollReason::QuotaUsed => format!(
            "It is not polled because the CPU quota of its control group does not leave a whole CPU \
             for each reactor that polls for {works}, or was used up."
        ),
    };
    Some(text)
}

fn pays(facts: &DiskFacts<'_>) -> String {
    let of = |count: fn(&QueuePolling) -> f64| {
        let queues = move |polling: &PollStats| count(&polling.queues);
        facts.grown(move |disk: &DiskStats| disk.polling.as_ref().map_or(0.0, queues))
    };
    let (hits, misses) = (of(|one| one.hits as f64), of(|one| one.misses as f64));
    let (spun, saved) = (of(|one| one.poll_seconds), of(|one| one.saved_wakeup_us));
    if hits == 0.0 || facts.seconds == 0.0 {
        return "It is polled, which has paid.".into();
    }
    format!(
        "It is polled, and that pays: {hits:.0} of {:.0} waits ended while it was polled, which \
         took {:.0}% of a CPU and saved {} each.",
        hits + misses,
        spun / facts.seconds * 100.0,
        duration(saved / hits / 1e6),
    )
}

/// Returns the remedy that permits polling.
fn step(facts: &DiskFacts<'_>, polling: &PollStats) -> Option<String> {
    match polling.queues.reason {
        PollReason::NoFreeCpu => Some(format!(
            "for a lower latency free a CPU, or poll on a busier host too: \
             ringway io disk.poll id={} poll_idle_threshold={}",
            facts.disk.id,
            polling.set.idle_threshold / 2
        )),
        PollReason::CpuWanted => Some(
            "for a lower latency give the machine's virtual CPUs and this process CPUs of their own"
                .into(),
        ),
        PollReason::QuotaUsed => Some(
            "for a lower latency raise the quota by a CPU for each reactor (CPUQuota= of a unit, \
             --cpus of a container, cpu.max of a group)"
                .into(),
        ),
        _ => None,
    }
}
