//! Tests with a row for every cause.

mod layers;
mod polling;
mod rules;
mod share;

use super::*;
use crate::caps::Caps;
use crate::report::*;
use crate::share::DiskShare;
use crate::spec::Backend;

/// Returns the stage times of `count` requests with a mean of `mean_us` each.
fn times(stage: Stage, count: u64, mean_us: f64, p50_us: f64) -> StageTimes {
    let times = Latency { count, p50_us, max_us: mean_us * 2.0, ..Latency::default() };
    StageTimes { stage, op: Op::Read, times, sum_seconds: count as f64 * mean_us / 1e6 }
}

/// Returns stage times with these means of queue, cap and device time, in microseconds.
fn stages(count: u64, [queue, cap, device]: [f64; 3], usual: f64) -> Vec<StageTimes> {
    let total = queue + cap + device;
    vec![
        times(Stage::Queue, count, queue, queue.min(5.0)),
        times(Stage::Cap, count, cap, 0.0),
        times(Stage::Device, count, device, usual),
        times(Stage::Total, count, total, usual + 5.0),
    ]
}

/// Two samples, a second apart, of a disk `d` and its neighbour `n` on one reactor.
struct Case {
    before: Stats,
    now: Stats,
}

impl Case {
    /// Returns a disk that has served requests and whose guest sends none now.
    fn idle() -> Self {
        let mut disk = DiskStats::new("d", Backend::File("/img/d.raw".into()), 1 << 30);
        (disk.state, disk.connected, disk.queues_started) = (DiskState::Active, true, 1);
        disk.socket = Some("/run/d.sock".into());
        disk.reactors = vec![0];
        disk.requests.read = 1000;
        disk.stages = stages(1000, [5.0, 0.0, 100.0], 100.0);
        let neighbour = DiskStats { id: "n".into(), ..disk.clone() };
        let reactor = ReactorStats { turns: 10, ..ReactorStats::default() };
        let before = Stats {
            version: "1".into(),
            pid: 7,
            uptime_seconds: 100.0,
            ports: Vec::new(),
            reactors: vec![reactor],
            disks: vec![disk, neighbour],
            nics: Vec::new(),
            networks: Vec::new(),
            poll_defaults: None,
            keeper: None,
            start: None,
            reactors_reason: None,
            queues_moved: 0,
        };
        let mut now = before.clone();
        (now.uptime_seconds, now.reactors[0].turns) = (101.0, 20);
        Self { before, now }
    }

    /// Returns a disk that ended `count` requests in the second, with these mean times.
    fn flow(count: u64, means_us: [f64; 3]) -> Self {
        let mut case = Self::idle();
        let disk = &mut case.now.disks[0];
        disk.requests.read += count;
        for (old, new) in disk.stages.iter_mut().zip(stages(count, means_us, 100.0)) {
            old.times.count += new.times.count;
            old.sum_seconds += new.sum_seconds;
        }
        case
    }

    fn disk(&mut self) -> &mut DiskStats {
        &mut self.now.disks[0]
    }

    fn oldest(stage: Stage, age_seconds: f64) -> Self {
        let mut case = Self::idle();
        let (kind, in_stage_seconds) = (Some(RequestKind::Write), age_seconds);
        let (offset, bytes) = (8192, 4096);
        let oldest = OldestRequest { kind, offset, bytes, stage, age_seconds, in_stage_seconds };
        (case.disk().oldest, case.disk().in_flight) = (Some(oldest), 3);
        case
    }

    /// Lets the reactor wait for a CPU for this share of the second.
    fn waits_for_cpu(&mut self, share: f64) {
        self.before.reactors[0].cpu_wait_seconds = Some(7.0);
        self.now.reactors[0].cpu_wait_seconds = Some(7.0 + share);
    }

    /// Lets requests of the disk wait for its share of the storage, this long in sum.
    fn waits_for_share(&mut self, waited_seconds: f64) {
        let share = DiskShare::default();
        let report =
            ShareReport { share, waited_seconds: 5.0, waiting: 7, ..ShareReport::default() };
        self.before.disks[0].share = Some(report.clone());
        let waited_seconds = report.waited_seconds + waited_seconds;
        self.disk().share = Some(ShareReport { waited_seconds, ..report });
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn verdict(&self) -> DiskVerdict {
        judge(&DiskFacts::new(&self.before, &self.now, &self.now.disks[0]))
    }
}

fn began(how: StartReason) -> Option<WorkerStart> {
    let after = (how == StartReason::Restart).then(|| "was killed by SIGKILL".into());
    Some(WorkerStart { reason: how, unix_seconds: 1e9, previous_exit: after })
}

fn broken(queue: u16, since_seconds: f64) -> BrokenRing {
    let cause = "descriptor 9 is outside a table of 8".into();
    BrokenRing { queue, kind: RingKind::Request, cause, unix_seconds: 1e9, since_seconds }
}

fn slow(ago: f64, queue_us: f64, device_us: f64) -> SlowRequest {
    SlowRequest {
        kind: RequestKind::Write,
        failed: false,
        offset: 0,
        bytes: 4096,
        ended_unix_seconds: 0.0,
        ended_seconds_ago: ago,
        total_us: queue_us + device_us,
        queue_us,
        cap_us: 0.0,
        device_us,
        completion_us: 0.0,
        reactor: 0,
        others: 0,
        neighbour: Some(BusyNeighbour { disk: Some("n".into()), turn_us: queue_us }),
    }
}

/// Expected cause, a case of it, and a part of its sentence.
type Row = (Cause, Case, &'static str);

/// Returns the causes that the stage times show.
fn flows() -> Vec<Row> {
    let busy = |share: f64| move |case: &mut Case| case.now.disks[1].busy_seconds += share;
    vec![
        (Cause::Idle, Case::idle(), "d is idle"),
        (
            Cause::Healthy,
            Case::flow(1000, [5.0, 0.0, 110.0]),
            "1000 requests a second, 115 us each",
        ),
        (
            Cause::StorageHangs,
            Case::oldest(Stage::Device, 12.0),
            "a write of 4 KiB at byte 8192 has been with it for 12 s, and 2 more with it; the \
             median is 100 us",
        ),
        (Cause::StorageSlow, Case::flow(50, [5.0, 0.0, 5000.0]), "50 times the median of 100 us"),
        (
            Cause::StorageSlow,
            Case::flow(50, [5.0, 0.0, 30_000.0]).with(|case| {
                for stage in &mut case.disk().stages {
                    stage.times.p50_us = 29_000.0;
                }
            }),
            "which is usual for it: the median is 29 ms",
        ),
        (
            Cause::DeepQueue,
            Case::flow(100_000, [20.0, 0.0, 300.0]),
            "keeps 32 requests under way and the storage answers 100000 a second",
        ),
        (Cause::Cap, Case::flow(100, [5.0, 9000.0, 100.0]), "99% of the time of its requests"),
        (Cause::Cap, Case::oldest(Stage::Cap, 2.0), "a request has been held back for 2.0 s"),
        (
            Cause::Cap,
            Case::oldest(Stage::Cap, 2.0).with(|case| {
                let (iops, bytes_per_second) = (Some(50), Some(1 << 20));
                case.disk().caps = Some(Caps { iops, bytes_per_second, ..Caps::default() });
            }),
            "waits for its cap of 50 requests and 1 MiB a second",
        ),
        (
            Cause::Share,
            Case::flow(1000, [5.0, 0.0, 900.0]).with(|case| case.waits_for_share(0.8)),
            "88% of the time of its requests, 800 us each; 7 requests wait now, with weight 100",
        ),
        (
            Cause::Neighbour,
            Case::flow(1000, [900.0, 0.0, 100.0]).with(busy(0.95)),
            "its reactor, which disk n keeps 95% of the time: its requests spend 90% of theirs",
        ),
        (
            Cause::Neighbour,
            Case::oldest(Stage::Queue, 3.0).with(|case| {
                case.before.reactors[0].serving = Some("n".into());
                case.now.reactors = case.before.reactors.clone();
            }),
            "its reactor is stuck with disk n",
        ),
        (
            Cause::Processor,
            Case::flow(500_000, [200.0, 0.0, 1.0]).with(|case| case.disk().busy_seconds = 0.97),
            "keeps its reactor busy 97% of the time",
        ),
        (
            Cause::NotRecorded,
            Case::flow(10, [0.0; 3]).with(|case| case.disk().recorded = false),
            "10 requests a second",
        ),
    ]
}

/// Returns the causes that the state of the disk shows.
fn states() -> Vec<Row> {
    let state = |state| Case::idle().with(|case| case.disk().state = state);
    vec![
        (
            Cause::Full,
            state(DiskState::Waiting).with(|case| {
                case.disk().alert = Some("3 requests wait because the storage is full".into());
            }),
            "the storage is full",
        ),
        (
            Cause::Full,
            state(DiskState::Waiting).with(|case| {
                case.disk().waiting = 2;
                case.disk().overlay = Some(OverlayStats {
                    ram_bytes: 4 << 20,
                    ram_used_bytes: 4 << 20,
                    has_overflow: true,
                    overflow_used_bytes: 1 << 30,
                    overflow_limit_bytes: Some(1 << 30),
                    waiting_bytes: 8192,
                    is_full: true,
                    ..OverlayStats::default()
                });
            }),
            "waits for room in its overlay: 8 KiB have no room in memory and overflow file (4 MiB of 4 \
             MiB in memory, 1 GiB of at most 1 GiB in the overflow file)",
        ),
        (Cause::Paused, state(DiskState::Paused), "is paused"),
        (
            Cause::Fence,
            Case::idle().with(|c| c.disk().fence = Some(Fence { since_seconds: 3.0 })),
            "waits behind its fence for 3.0 s",
        ),
        (
            Cause::Refused,
            state(DiskState::Refused).with(|c| c.disk().refused = Some("the image shrank".into())),
            "not taken over after a restart: the image shrank",
        ),
        (
            Cause::Stuck,
            state(DiskState::Stuck).with(|case| {
                let verb = "detach".into();
                case.disk().stuck = Some(Stuck { since_seconds: 30.0, requests: 4, verb });
            }),
            "its storage hangs, the detach gave up waiting 30 s ago, and 4 requests are still",
        ),
        (Cause::Inactive, state(DiskState::Attached), "is attached and not active"),
        (
            Cause::NoFrontEnd,
            state(DiskState::Attached).with(|case| case.disk().socket = None),
            "has no socket, so no guest uses it",
        ),
        (
            Cause::NoFrontEnd,
            Case::idle().with(|case| case.disk().connected = false),
            "has no front-end",
        ),
        (
            Cause::NoDriver,
            Case::idle().with(|case| case.disk().queues_started = 0),
            "has started no queue",
        ),
    ]
}

/// Returns the causes that a restart, broken rings, the host and an export show.
fn events() -> Vec<Row> {
    let state = |state| Case::idle().with(|case| case.disk().state = state);
    vec![
        (
            Cause::Restarted,
            Case::flow(10, [5.0, 0.0, 100.0]).with(|case| {
                case.before.pid = 6;
                case.now.uptime_seconds = 4.0;
                case.disk().resubmitted = 12;
            }),
            "taken over 4.0 s ago by a new process, which submitted 12 requests",
        ),
        (
            Cause::Restarted,
            Case::flow(10, [5.0, 0.0, 100.0]).with(|case| {
                case.now.uptime_seconds = 4.0;
                case.now.start = began(StartReason::Restart);
            }),
            "taken over 4.0 s ago by a new process; its guest saw a pause",
        ),
        (
            Cause::Healthy,
            Case::flow(10, [5.0, 0.0, 100.0]).with(|case| {
                case.now.uptime_seconds = 14.0;
                case.now.start = began(StartReason::Restart);
                let since =
                    case.now.start.as_ref().map(|worker_start| worker_start.unix_seconds + 10.0);
                case.disk().counting_since_unix_seconds = since;
            }),
            "",
        ),
        (
            Cause::Full,
            state(DiskState::Attached).with(|case| {
                case.disk().waiting = 1;
                case.disk().alert = Some("1 requests wait because the storage is full".into());
            }),
            "d is not active, and a client of its export waits for room on its storage: 1 requests",
        ),
        (
            Cause::BrokenRing,
            Case::flow(1000, [5.0, 0.0, 110.0])
                .with(|case| case.disk().broken_rings = vec![broken(2, 12.0), broken(1, 90.0)]),
            "request ring 1 (and 1 more) broke 90 s ago and waits for a reset of the device \
             (descriptor 9 is outside a table of 8).",
        ),
        (
            // The ring was broken before an upgrade, so the new worker has not started it.
            Cause::BrokenRing,
            Case::idle().with(|case| {
                case.disk().queues_started = 0;
                case.disk().broken_rings = vec![broken(0, 3.0)];
            }),
            "request ring 0 broke 3.0 s ago and",
        ),
        (
            Cause::NoCpu,
            Case::flow(1000, [900.0, 0.0, 100.0]).with(|case| case.waits_for_cpu(0.8)),
            "the host did not run its reactor for 80% of the time",
        ),
        (
            Cause::NoCpu,
            Case::oldest(Stage::Device, 2.0).with(|case| case.waits_for_cpu(0.95)),
            "the host did not run its reactor for 95% of the time",
        ),
    ]
}

#[test]
fn an_overlay_that_is_soon_full_is_told_with_every_verdict() {
    let overlay = |room: u64| OverlayStats {
        ram_bytes: room,
        bytes_per_second: Some(1 << 20),
        ..OverlayStats::default()
    };
    let warning = |room: u64| {
        let stats = overlay(room).with_forecast();
        Case::idle().with(|case| case.disk().overlay = Some(stats)).verdict().overlay
    };
    assert_eq!(warning(1 << 40), None);
    let expected =
        "Its overlay is full in 4.3 min at the present rate: 0 bytes of 256 MiB in memory.";
    assert_eq!(warning(256 << 20).as_deref(), Some(expected));
}

#[test]
fn every_cause_is_told_in_one_sentence() {
    for (cause, case, part) in flows().into_iter().chain(states()).chain(events()) {
        let verdict = case.verdict();
        assert_eq!(verdict.cause, cause, "{verdict:?}");
        assert!(verdict.sentence.contains(part), "{}\nhas no {part:?}", verdict.sentence);
        assert!(verdict.sentence.starts_with('d') && verdict.sentence.ends_with('.'));
        assert!(!verdict.sentence.contains(". "), "one sentence: {}", verdict.sentence);
        let neighbour = (cause == Cause::Neighbour).then_some("n");
        assert_eq!(verdict.neighbour.as_deref(), neighbour);
        // An alert names the remedy itself.
        let fine = [Cause::Idle, Cause::Healthy, Cause::Full].contains(&cause);
        let fine = fine && case.now.disks[0].overlay.is_none();
        assert_eq!(verdict.next.is_none(), fine, "{verdict:?}");
    }
}

#[test]
fn what_is_worse_is_told_first() {
    let full = Case::oldest(Stage::Device, 12.0).with(|c| c.disk().state = DiskState::Waiting);
    assert_eq!(full.verdict().cause, Cause::Full);
    let both = Case::oldest(Stage::Device, 12.0).with(|case| case.disk().resubmitted = 1);
    assert_eq!(both.verdict().cause, Cause::StorageHangs);
    assert_eq!(both.verdict().since_seconds, Some(12.0));
}

#[test]
fn a_request_that_ended_its_process_is_told_whatever_holds_now() {
    let full = Case::oldest(Stage::Device, 12.0).with(|c| c.disk().state = DiskState::Waiting);
    let verdict = full.with(|case| case.disk().failed_suspects = 2).verdict();
    assert_eq!(verdict.cause, Cause::Full);
    assert!(verdict.past.unwrap().starts_with("Requests of it failed with an I/O error (2): "));
}

fn storage_errors(last_seconds_ago: f64) -> StorageErrors {
    StorageErrors { count: 3, last: "storage error: EIO".into(), last_seconds_ago }
}

#[test]
fn failing_storage_is_the_cause_for_a_while_and_told_later() {
    let at = |seconds: f64| {
        Case::idle().with(|case| case.disk().storage_errors = Some(storage_errors(seconds)))
    };
    let verdict = at(20.0).verdict();
    assert_eq!(verdict.cause, Cause::StorageFails);
    assert_eq!(
        verdict.sentence,
        "d has storage that fails requests: 3 so far, the last 20 s ago (storage error: EIO). The \
         guest gets I/O errors."
    );
    let verdict = at(400.0).verdict();
    assert_eq!(verdict.cause, Cause::Idle);
    assert!(verdict.past.unwrap().contains("3 so far"));
    // What slows the disk now comes before an error that is past.
    let slow = Case::flow(50, [5.0, 9000.0, 100.0]);
    let slow = slow.with(|case| case.disk().storage_errors = Some(storage_errors(20.0)));
    assert_eq!(slow.verdict().cause, Cause::Cap);
}

/// The causes in their order, with a change to a disk that has each of them.
#[test]
fn a_cause_that_holds_now_comes_before_those_behind_it() {
    type Change = fn(&mut Case);
    let changes: [(Cause, Change); 13] = [
        (Cause::Fence, |case| case.disk().fence = Some(Fence { since_seconds: 3.0 })),
        (Cause::Full, |case| case.disk().waiting = 3),
        (Cause::Paused, |case| case.disk().state = DiskState::Paused),
        (Cause::NoFrontEnd, |case| case.disk().connected = false),
        (Cause::BrokenRing, |case| case.disk().broken_rings = vec![broken(0, 3.0)]),
        (Cause::NoDriver, |case| case.disk().queues_started = 0),
        (Cause::StorageHangs, |case| {
            let hung = Case::oldest(Stage::Device, 12.0);
            case.disk().oldest = hung.now.disks[0].oldest;
        }),
        (Cause::StorageFails, |case| case.disk().storage_errors = Some(storage_errors(0.5))),
        (Cause::Cap, |case| *case.disk() = Case::flow(100, [0.0, 9e3, 0.0]).now.disks.remove(0)),
        (Cause::NoCpu, |case| {
            *case.disk() = Case::flow(100, [900.0, 0.0, 100.0]).now.disks.remove(0);
            case.waits_for_cpu(0.5);
        }),
        (Cause::Share, |case| {
            *case.disk() = Case::flow(100, [0.0, 0.0, 900.0]).now.disks.remove(0);
            case.waits_for_share(0.08);
        }),
        (Cause::Restarted, |case| {
            case.now.uptime_seconds = 4.0;
            case.before.uptime_seconds = 3.0;
            case.now.start = began(StartReason::Restart);
        }),
        (Cause::Idle, |_| ()),
    ];
    // Each case has its cause and all those behind it.
    for (at, (cause, _)) in changes.iter().enumerate() {
        let mut case = Case::idle();
        changes[at..].iter().rev().for_each(|(_, change)| change(&mut case));
        assert_eq!(case.verdict().cause, *cause, "{:?}", case.verdict());
    }
}

#[test]
fn a_restart_is_told_after_what_holds_now() {
    let restarted = |case: &mut Case| {
        case.now.uptime_seconds = 4.0;
        case.before.uptime_seconds = 3.0;
        case.now.start = began(StartReason::Restart);
    };
    let capped = Case::flow(50, [5.0, 9000.0, 100.0]).with(restarted);
    assert_eq!(capped.verdict().cause, Cause::Cap);
    let past = capped.verdict().past.unwrap();
    assert!(past.starts_with("d was taken over 4.0 s ago by a new process"), "{past}");
    let mut idle = Case::idle().with(restarted);
    assert_eq!((idle.verdict().cause, idle.verdict().past), (Cause::Restarted, None));
    idle.now.uptime_seconds = 100.0;
    assert_eq!((idle.verdict().cause, idle.verdict().past), (Cause::Idle, None));
}

#[test]
fn a_reactor_that_waits_for_a_cpu_delays_only_those_who_ask() {
    let idle = Case::idle().with(|case| case.waits_for_cpu(0.9));
    assert_eq!(idle.verdict().cause, Cause::Idle);
    let fast = Case::flow(1000, [1.0, 0.0, 10.0]).with(|case| case.waits_for_cpu(0.9));
    assert_eq!(fast.verdict().cause, Cause::Healthy);
    // A neighbour is named if it had the thread for longer than the host withheld it.
    let both = |wait| {
        let case = Case::flow(1000, [900.0, 0.0, 100.0]).with(|case| case.waits_for_cpu(wait));
        case.with(|case| case.now.disks[1].busy_seconds += 0.6).verdict().cause
    };
    assert_eq!((both(0.5), both(0.7)), (Cause::Neighbour, Cause::NoCpu));
    let little = Case::flow(1000, [50.0, 0.0, 110.0]).with(|case| case.waits_for_cpu(0.2));
    assert_eq!(little.verdict().cause, Cause::Healthy);
    // A kernel that does not count it.
    let unknown = Case::flow(1000, [50.0, 0.0, 110.0]);
    assert_eq!(unknown.verdict().cause, Cause::Healthy);
}

#[test]
fn a_long_request_is_no_hang_where_that_is_usual() {
    let mut case = Case::oldest(Stage::Device, 2.0);
    for stage in &mut case.disk().stages {
        stage.times.p50_us = 400_000.0;
    }
    assert_ne!(case.verdict().cause, Cause::StorageHangs);
    assert_ne!(Case::oldest(Stage::Device, 0.1).verdict().cause, Cause::StorageHangs);
}

#[test]
fn what_was_slow_is_told_afterwards() {
    let case = Case::idle().with(|case| {
        case.disk().slow = vec![slow(30.0, 0.0, 4_000_000.0), slow(60.0, 0.0, 50_000.0)];
    });
    let past = case.verdict().past.unwrap();
    assert!(past.starts_with("30 s ago a write of 4 KiB took 4.0 s, of which 4.0 s with the st"));
    assert!(past.contains("slowest of 2"), "{past}");
    let case = Case::idle().with(|c| c.disk().slow = vec![slow(30.0, 20_000.0, 100.0)]);
    let past = case.verdict().past.unwrap();
    assert!(past.contains("in the ring while its reactor served n for 20 ms"), "{past}");
    let old = Case::idle().with(|c| c.disk().slow = vec![slow(5000.0, 0.0, 1e6)]);
    assert_eq!(old.verdict().past, None);
}

#[test]
fn samples_that_do_not_fit_do_no_harm() {
    let mut case = Case::flow(10, [5.0, 0.0, 100.0]);
    for uptime in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        case.before.uptime_seconds = uptime;
        case.verdict();
    }
    case.before.disks.clear();
    case.before.reactors.clear();
    assert_eq!(case.verdict().cause, Cause::Healthy);
}

#[test]
fn what_is_advised_for_a_refused_disk_can_help() {
    let next = |novel| {
        let case = Case::idle().with(|case| {
            case.disk().state = DiskState::Refused;
            case.disk().unknown_format = novel;
        });
        case.verdict().next.unwrap()
    };
    assert!(next(false).contains("disk.activate"), "{}", next(false));
    // A version that cannot read the disk's state cannot read it after an activate either.
    assert!(!next(true).contains("activate"), "{}", next(true));
    assert!(next(true).contains("ringway io upgrade") && next(true).contains("disk.detach"));
}
