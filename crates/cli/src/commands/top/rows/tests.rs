//! Tests of rows computed from samples.

use super::super::order::{Column, Order};
use super::super::render::table;
use super::*;
use model::poll::EffectivePolling;
use model::report::{Latency, Op, PollRefusals, QueuePolling, ShareReport, StageTimes};
use model::spec::{Backend, DiskShare};

fn sample(uptime_seconds: f64, reads: [u64; 2], device_seconds: f64) -> Stats {
    let disks = [("a", reads[0]), ("b", reads[1])].map(|(id, reads)| {
        let mut disk = DiskStats::new(id, Backend::Null(1 << 20), 1 << 20);
        (disk.state, disk.connected) = (DiskState::Active, true);
        (disk.requests.read, disk.bytes.read) = (reads, reads * 4096);
        let times = Latency { count: reads, ..Latency::default() };
        let (op, sum_seconds) = (Op::Read, device_seconds);
        disk.stages = [Stage::Device, Stage::Total]
            .map(|stage| StageTimes { stage, op, times, sum_seconds })
            .into();
        disk
    });
    let (version, reactors, disks) = ("1".into(), Vec::new(), disks.into());
    Stats {
        version,
        pid: 1,
        uptime_seconds,
        ports: Vec::new(),
        reactors,
        reactors_reason: None,
        queues_moved: 0,
        disks,
        nics: Vec::new(),
        networks: Vec::new(),
        poll_defaults: None,
        keeper: None,
        start: None,
    }
}

#[test]
fn rates_are_those_between_the_samples() {
    let (before, now) = (sample(10.0, [100, 0], 1.0), sample(12.0, [300, 50], 1.1));
    let rows = rows(Some(&before), &now, "");
    assert_eq!((rows[0].read_iops, rows[1].iops), (100.0, 25.0));
    assert_eq!(rows[0].bytes_per_second, 409_600.0);
    assert!((rows[0].latency - 0.1 / 200.0).abs() < 1e-9);
    assert_eq!(rows[0].longest.unwrap().0, "device");
}

#[test]
fn waits_for_a_share_are_not_shown_as_the_storages_time() {
    let between = |waited_seconds| {
        let (before, mut now) = (sample(10.0, [100, 0], 1.0), sample(12.0, [300, 50], 2.0));
        let share = DiskShare { weight: 4, ..DiskShare::default() };
        now.disks[0].share =
            Some(ShareReport { share, waited_seconds, waiting: 0, ..ShareReport::default() });
        rows(Some(&before), &now, "")
    };
    assert_eq!(between(0.7)[0].longest, Some(("share", 0.7)));
    assert_eq!(between(0.2)[0].longest, Some(("device", 0.8)));
    let shown = |rows: &[Row]| table(rows, Order::new(Column::Disk), false).to_string();
    let with = shown(&between(0.7));
    assert!(with.contains("weight") && with.contains(" 4 "), "{with}");
    assert!(!shown(&rows(None, &sample(10.0, [100, 0], 1.0), "")).contains("weight"));
}

#[test]
fn a_first_sample_and_one_of_another_process_have_no_rates() {
    let now = sample(12.0, [300, 50], 1.1);
    let other = Stats { pid: 2, ..sample(10.0, [100, 0], 1.0) };
    for before in [None, Some(&other)] {
        assert!(rows(before, &now, "").iter().all(|row| row.iops == 0.0));
    }
}

#[test]
fn a_disk_that_is_not_served_is_not_shown_as_polled() {
    let shown = |reason, armed| {
        let mut now = sample(12.0, [0, 0], 0.0);
        let queues = QueuePolling {
            polling: armed,
            reason,
            hits: 0,
            misses: 0,
            poll_seconds: 0.0,
            saved_wakeup_us: 0.0,
        };
        let (set, refused) = (EffectivePolling::default(), PollRefusals::default());
        now.disks[0].polling = Some(PollStats { set, queues, refused });
        rows(None, &now, "")[0].polled
    };
    for (reason, text) in [
        (PollReason::Pays, "pays"),
        (PollReason::Probing, "probing"),
        (PollReason::Always, "always"),
    ] {
        assert_eq!((shown(reason, true), shown(reason, false)), (text, "-"));
    }
    assert_eq!(shown(PollReason::Off, false), "off");
}

#[test]
fn keys_sort_and_turn_round() {
    let (before, now) = (sample(10.0, [0, 0], 0.0), sample(12.0, [10, 50], 0.0));
    let mut all = rows(Some(&before), &now, "");
    let mut order = Order::new(Column::Iops);
    let mut sorted = |order: Order| {
        order.sort(&mut all);
        all.iter().map(|row| row.disk.as_str()).collect::<String>()
    };
    assert_eq!(sorted(order), "ba");
    order.press(b'i');
    assert_eq!(sorted(order), "ab");
    order.press(b'd');
    assert_eq!(sorted(order), "ab");
    order.press(b'd');
    assert_eq!(sorted(order), "ba");
    order.press(b'?');
    assert_eq!(sorted(order), "ba");
    let shown = table(&all, order, false).to_string();
    assert!(shown.contains("[d]isk ^") && shown.contains("read/s"), "{shown}");
}
