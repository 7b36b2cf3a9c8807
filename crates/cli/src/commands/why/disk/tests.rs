//! Tests of the output on queues.

use model::diagnosis::{DiskFacts, judge};
use model::report::{PollReason, QueuePolling};
use model::spec::{Backend, DiskShare};

use super::*;

/// Returns the output for a disk with this number of queues, of which the last one sleeps.
fn report_text_of(queues: u16) -> String {
    let mut disk = DiskStats::new("d", Backend::Null(1 << 20), 1 << 20);
    disk.socket = Some("/run/d.sock".into());
    let one = |index| {
        let (armed, reason) = match index + 1 < queues {
            true => (true, PollReason::Pays),
            false => (false, PollReason::TooLong),
        };
        let polling = QueuePolling {
            polling: armed,
            reason,
            hits: 7,
            misses: 1,
            poll_seconds: 2.0,
            saved_wakeup_us: 90.0,
        };
        QueueStats {
            index,
            reactor: 0,
            in_flight: 0,
            queued: 0,
            throttled: false,
            busy_seconds: 0.0,
            longest_turn_us: 0.0,
            neighbour_seconds: 0.0,
            neighbour: None,
            neighbour_seconds_ago: None,
            polling: Some(polling),
        }
    };
    disk.each_queue = (0..queues).map(one).collect();
    let stats = Stats {
        version: "1".into(),
        pid: 1,
        uptime_seconds: 1.0,
        ports: Vec::new(),
        reactors: Vec::new(),
        reactors_reason: None,
        queues_moved: 0,
        disks: vec![disk],
        nics: Vec::new(),
        networks: Vec::new(),
        poll_defaults: None,
        keeper: None,
        start: None,
    };
    let verdict = judge(&DiskFacts::new(&stats, &stats, &stats.disks[0]));
    report_text(&verdict, &stats.disks[0], &stats)
}

#[test]
fn queues_have_a_line_each_where_there_are_several() {
    let lines = |text: &str, part: &str| text.lines().filter(|line| line.contains(part)).count();
    let one = report_text_of(1);
    assert_eq!((lines(&one, "too_long"), lines(&one, "queue ")), (0, 0), "{one}");
    let all = report_text_of(16);
    assert_eq!((lines(&all, "pays"), lines(&all, "too_long")), (15, 1), "{all}");
    let widest = all.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 80, "{all}");
}

#[test]
fn a_share_of_the_storage_is_told() {
    let share = DiskShare { floor_iops: Some(50), ..DiskShare::default() };
    let report = ShareReport {
        share,
        waited_seconds: 1.5,
        waiting: 3,
        behind: Some("e".into()),
        splits: 12,
        in_flight: 24,
        depth_seconds: 0.002,
        ..ShareReport::default()
    };
    assert_eq!(
        shared(&report),
        "Its share of the storage: weight 100 and a floor of 50 requests a second; its requests have \
         waited 1.5 s for it in sum, 3 wait now behind e, 12 went there in pieces. \
         The storage has 24 in flight; its depth is 2.0 ms of device time."
    );
}
