//! Tests of waits for a share of the storage.

use super::*;

fn waits(waited_seconds: f64) -> Case {
    Case::flow(1000, [5.0, 0.0, 900.0]).with(|case| case.waits_for_share(waited_seconds))
}

#[test]
fn a_share_is_named_for_its_part_of_the_time() {
    assert_eq!(waits(0.2).verdict().cause, Cause::Healthy);
    assert_eq!(
        (waits(0.3).verdict().cause, waits(0.3).verdict().stage),
        (Cause::Share, Some(Stage::Device))
    );
    // Waits that are short are no cause, whatever their part.
    let short = Case::flow(1000, [1.0, 0.0, 80.0]).with(|case| case.waits_for_share(0.08));
    assert_eq!(short.verdict().cause, Cause::Healthy);
    // Waits of an earlier time are past.
    let past = waits(0.8).with(|case| case.before = case.now.clone());
    let past = past.with(|case| case.before.uptime_seconds -= 1.0);
    assert_ne!(past.verdict().cause, Cause::Share);
}

#[test]
fn a_long_wait_for_a_share_is_no_hang_while_such_waits_end() {
    let old = |case: &mut Case| {
        case.now.disks[0].oldest = Case::oldest(Stage::Device, 2.0).now.disks[0].oldest
    };
    assert_eq!(waits(0.8).with(old).verdict().cause, Cause::Share);
    let hung = waits(0.8).with(old).with(|case| {
        case.before = case.now.clone();
        case.before.uptime_seconds -= 1.0;
    });
    assert_eq!(hung.verdict().cause, Cause::StorageHangs);
}

#[test]
fn the_disk_that_moves_the_most_is_told_beside_it() {
    let beside = |share: Option<u16>, moved: u64| {
        waits(0.8)
            .with(|case| {
                let share = share.map(|weight| DiskShare { weight, ..DiskShare::default() });
                let report = |share| ShareReport { share, ..ShareReport::default() };
                case.now.disks[1].share = share.map(report);
                case.now.disks[1].bytes.read += moved;
            })
            .verdict()
            .sentence
    };
    let told = beside(Some(400), 800 << 20);
    assert!(
        told.ends_with("weight 100, while n with weight 400 moves 800 MiB a second."),
        "{told}"
    );
    // One that is idle, or on a storage without shares, is none of its concern.
    for (share, moved) in [(Some(400), 0), (None, 800 << 20)] {
        assert!(beside(share, moved).ends_with("with weight 100."));
    }
}

#[test]
fn how_a_weight_is_raised_is_right_as_it_stands() {
    let remedy = |share| {
        let case = waits(0.8).with(|case| case.disk().share.as_mut().unwrap().share = share);
        case.verdict()
    };
    let next = remedy(DiskShare::default()).next.unwrap();
    assert!(next.contains("ringway io disk.weight id=d weight=200;"), "{next}");
    assert!(next.ends_with("qos_algorithm_params:weight=200"), "{next}");
    let floors = DiskShare { weight: 600, floor_iops: Some(50), floor_bytes: Some(1 << 20) };
    let verdict = remedy(floors);
    let floor = "weight 600 and a floor of 50 requests and 1 MiB a second";
    assert!(verdict.sentence.contains(floor), "{}", verdict.sentence);
    let next = verdict.next.unwrap();
    let command = "disk.weight id=d weight=1000 floor_iops=50 floor_bytes=1048576;";
    assert!(next.contains(command), "{next}");
    let most = remedy(DiskShare { weight: 1000, ..DiskShare::default() }).next.unwrap();
    assert!(!most.contains("weight="), "{most}");
}

#[test]
fn a_disk_that_waits_for_the_depth_alone_loses_nothing() {
    let alone = |case: &mut Case| case.disk().share.as_mut().unwrap().in_flight = 24;
    let verdict = waits(0.8).with(alone).verdict();
    let told = "depth held at 24 because more only adds latency";
    assert!(verdict.sentence.contains(told), "{}", verdict.sentence);
    assert!(verdict.share.unwrap().contains(told));
    assert!(!verdict.next.unwrap().contains("disk.weight"));
    let behind = waits(0.8).with(alone).with(|case| {
        case.disk().share.as_mut().unwrap().behind = Some("n".into());
    });
    assert!(behind.verdict().next.unwrap().contains("disk.weight"));
    assert_eq!(behind.verdict().share, None);
}

#[test]
fn pieces_and_a_smaller_depth_are_told_while_they_last() {
    let change = |case: &mut Case| {
        let report = case.disk().share.as_mut().unwrap();
        (report.splits, report.piece_bytes) = (report.splits + 7, Some(65_536));
        (report.tightened, report.depth_seconds) = (report.tightened + 1, 0.002);
    };
    let case = waits(0.0).with(change);
    let told = case.verdict().share.unwrap();
    assert!(told.contains("7 large requests were split into 64 KiB pieces"), "{told}");
    assert!(told.contains("its depth is 2.0 ms of device time"), "{told}");
    let past = case.with(|case| case.before.disks[0].share = case.now.disks[0].share.clone());
    assert_eq!(past.verdict().share, None);
}
