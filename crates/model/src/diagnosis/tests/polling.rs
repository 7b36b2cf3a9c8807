//! Tests of the sentences on polling.

use super::*;
use crate::poll::EffectivePolling;

fn polled(reason: PollReason, hits: u64) -> PollStats {
    let queues = QueuePolling {
        polling: true,
        reason,
        hits,
        misses: hits / 10,
        poll_seconds: hits as f64 * 20e-6,
        saved_wakeup_us: hits as f64 * 15.0,
    };
    PollStats { set: EffectivePolling::default(), queues, refused: PollRefusals::default() }
}

/// Returns a healthy disk that is polled, or not, for this reason.
fn case(reason: PollReason) -> Case {
    let mut case = Case::flow(1000, [5.0, 0.0, 110.0]);
    case.before.disks[0].polling = Some(polled(reason, 1000));
    case.now.disks[0].polling = Some(polled(reason, 11_000));
    case
}

#[test]
fn every_reason_has_a_sentence_and_those_of_a_busy_host_a_step() {
    for (reason, part) in [
        (PollReason::Pays, "10000 of 11000 waits ended while it was polled, which took 20%"),
        (PollReason::Pays, "saved 15 us each."),
        (PollReason::Probing, "A few of its waits are polled"),
        (PollReason::Always, "takes a whole CPU"),
        (PollReason::TooLong, "too far apart for that to pay (a hit may cost 128 us)"),
        (PollReason::Off, "It is not polled: that is turned off"),
        (PollReason::NoFreeCpu, "not polled because no CPU is free: 75% of one must be free"),
        (PollReason::CpuWanted, "because other threads want the CPU of its reactor"),
        (PollReason::BudgetUsed, "polls that found nothing have used up their budget"),
        (PollReason::QuotaUsed, "because the CPU quota of its control group does not leave"),
    ] {
        let verdict = case(reason).verdict();
        assert_eq!(verdict.cause, Cause::Healthy);
        let text = verdict.polling.unwrap();
        assert!(text.contains(part) && text.ends_with('.'), "{text}\nhas no {part:?}");
        let busy = [PollReason::NoFreeCpu, PollReason::CpuWanted, PollReason::QuotaUsed];
        let step = busy.contains(&reason);
        assert_eq!(verdict.next.is_some(), step, "{:?}", verdict.next);
    }
    let step = case(PollReason::NoFreeCpu).verdict().next.unwrap();
    assert!(step.ends_with("ringway io disk.poll id=d poll_idle_threshold=37"), "{step}");
}

#[test]
fn nothing_is_told_of_what_is_not_known_or_does_not_matter() {
    assert_eq!(case(PollReason::Never).verdict().polling, None);
    assert_eq!(case(PollReason::Unknown).verdict().polling, None);
    assert_eq!(Case::flow(10, [5.0, 0.0, 100.0]).verdict().polling, None);
    let paused = case(PollReason::Pays).with(|case| case.disk().state = DiskState::Paused);
    assert_eq!(paused.verdict().polling, None);
    // Without an earlier sample, the sentence has no rates.
    let mut fresh = case(PollReason::Pays);
    fresh.before.disks.clear();
    assert!(fresh.verdict().polling.unwrap().starts_with("It is polled"));
}
