//! Tests of facts that must not name a cause.

use super::*;

#[test]
fn an_upgrade_and_a_start_are_no_restart() {
    for how in [StartReason::Upgrade, StartReason::Start] {
        let case = Case::flow(10, [5.0, 0.0, 100.0]).with(|case| {
            case.now.uptime_seconds = 4.0;
            case.now.start = began(how);
            // The keeper remembers a restart of long ago.
            let keeper = KeeperStats { restarts: 3, ..KeeperStats::default() };
            case.now.keeper = Some(keeper);
        });
        assert_eq!(case.verdict().cause, Cause::Healthy, "{how:?}");
    }
    let dead = Case::flow(10, [5.0, 0.0, 100.0]).with(|case| {
        (case.now.uptime_seconds, case.now.start) = (4.0, began(StartReason::Restart));
    });
    assert!(dead.verdict().next.unwrap().ends_with("it was killed by SIGKILL"));
}

#[test]
fn a_cap_is_named_for_its_share_and_not_for_an_instant() {
    let held =
        |count, means| Case::flow(count, means).with(|case| case.disk().throttled_queues = 1);
    assert_eq!(held(100, [5.0, 10.0, 100.0]).verdict().cause, Cause::Healthy);
    assert_eq!(held(100, [5.0, 9000.0, 100.0]).verdict().cause, Cause::Cap);
    // No request ended in the second: the oldest was held back for most of it, or came just now.
    assert_eq!(Case::oldest(Stage::Cap, 0.4).verdict().cause, Cause::Cap);
    assert_ne!(Case::oldest(Stage::Cap, 0.1).verdict().cause, Cause::Cap);
}

#[test]
fn how_a_cap_is_raised_is_right_as_it_stands() {
    let remedy = |caps| {
        let case = Case::oldest(Stage::Cap, 2.0).with(|case| case.disk().caps = caps);
        case.verdict().next.unwrap()
    };
    let caps = Caps { iops: Some(50), bytes_per_second: Some(1 << 20), ..Caps::default() };
    let next = remedy(Some(caps));
    let command = "ringway io disk.caps id=d caps.iops=100 caps.bytes_per_second=2097152";
    assert!(next.ends_with(command), "{next}");
    let burst = Caps { iops: Some(50), iops_burst: Some(60), burst_seconds: 9, ..Caps::default() };
    let next = remedy(Some(burst));
    assert!(next.ends_with("caps.iops=100 caps.iops_burst=100 caps.burst_seconds=9"), "{next}");
    let most = Caps { iops: Some(crate::caps::MAX_IOPS), ..Caps::default() };
    assert!(remedy(Some(most)).ends_with("caps.iops=4294967296"));
    assert!(!remedy(None).contains("disk.caps"));
}

#[test]
fn a_neighbour_that_did_little_is_not_named() {
    let waited = |share: f64| {
        let case = Case::flow(1000, [900.0, 0.0, 100.0]).with(|case| {
            case.disk().neighbour_seconds += 0.6;
            case.now.disks[1].busy_seconds += share;
        });
        case.verdict()
    };
    assert_eq!(waited(0.6).neighbour.as_deref(), Some("n"));
    assert_eq!(waited(0.0).neighbour, None);
    assert_ne!(waited(0.0).cause, Cause::Neighbour);
}

#[test]
fn small_writes_are_named_for_their_share() {
    let small = |count| {
        Case::flow(1000, [5.0, 0.0, 100.0]).with(|case| case.disk().small_writes += count).verdict()
    };
    assert_eq!(small(99).cause, Cause::Healthy);
    let verdict = small(100);
    assert_eq!((verdict.cause, verdict.stage), (Cause::SmallWrites, Some(Stage::Device)));
    let named = ["512-byte blocks", "100 times a second", "1000 requests"];
    assert!(named.iter().all(|text| verdict.sentence.contains(text)), "{}", verdict.sentence);
    assert!(verdict.next.unwrap().contains("block_size=4096"));
}
