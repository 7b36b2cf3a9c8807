//! Caps on running disks, with guests that always send more requests.
//!
//! `make soak` runs the storms for five minutes each.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::*;
use model::report::{DiskState, Op, Stage};
use model::rpc::code;
use serde_json::{Value, json};
use testkit::driver::{Driver, Options, Queue};
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::rounds;

pub(crate) const BYTES: u64 = 64 << 20;
pub(crate) const QUEUES: u16 = 2;
const SLOTS: u16 = 32;
const SLOT_BYTES: usize = 1 << 20;
/// Delay that no permitted request has, even if it waits for its cap.
const STARVED: Duration = Duration::from_secs(20);

/// Threads that write at random positions as fast as they can, each on its own queue.
pub(crate) struct Storm {
    stop: Arc<AtomicBool>,
    counts: Vec<Arc<Count>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Count {
    requests: AtomicU64,
    bytes: AtomicU64,
    longest: Mutex<Duration>,
}

impl Storm {
    /// Starts writes of up to `len` bytes.
    pub(crate) fn start(io: &Io, id: &str, len: usize) -> Self {
        Self::start_on(io, id, len, QUEUES)
    }

    /// Starts writes of up to `len` bytes on so many queues.
    pub(crate) fn start_on(io: &Io, id: &str, len: usize, queues: u16) -> Self {
        let options =
            Options { queues, slots: SLOTS, slot_bytes: SLOT_BYTES, ..Options::default() };
        let driver = Driver::connect(&io.socket(id), &options).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let counts: Vec<_> = driver.queues.iter().map(|_| Arc::<Count>::default()).collect();
        let queues = driver.queues.into_iter().zip(counts.clone()).zip(1u64..);
        let threads = queues.map(|((queue, count), seed)| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || rage(queue, len, seed, &count, &stop))
        });
        let threads = threads.collect();
        Self { stop, threads, counts }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.counts.iter().map(|count| count.requests.load(Ordering::Relaxed)).sum()
    }

    fn bytes(&self) -> u64 {
        self.counts.iter().map(|count| count.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Leaves requests that nothing will complete, because their process was killed.
    pub(crate) fn abandon(self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends after all requests have completed. Returns the longest time without a completion.
    pub(crate) fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.counts.iter().map(|count| *count.longest.lock().unwrap()).max().unwrap()
    }
}

fn rage(mut queue: Queue, len: usize, mut seed: u64, count: &Count, stop: &AtomicBool) {
    let mut submit = |queue: &mut Queue, slot: u16| {
        // A xorshift is random enough to avoid sequential positions.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let len = if len > 4096 { (seed as usize % (len / 4096) + 1) * 4096 } else { len };
        let offset = (seed >> 20) % ((BYTES - len as u64) / 4096) * 4096;
        queue.write(offset, slot, len).unwrap();
        len as u64
    };
    let mut lens: Vec<u64> = (0..SLOTS).map(|slot| submit(&mut queue, slot)).collect();
    let mut last = Instant::now();
    for _ in 0.. {
        let (slot, result) = queue.finish_one().unwrap();
        assert_eq!(result, 0, "a cap is no error");
        let gap = last.elapsed();
        last += gap;
        let mut longest = count.longest.lock().unwrap();
        *longest = gap.max(*longest);
        drop(longest);
        let len = &mut lens[usize::from(slot)];
        count.bytes.fetch_add(std::mem::take(len), Ordering::Relaxed);
        count.requests.fetch_add(1, Ordering::Relaxed);
        if !stop.load(Ordering::Relaxed) {
            *len = submit(&mut queue, slot);
        } else if lens.iter().all(|len| *len == 0) {
            return;
        }
    }
}

fn attach(io: &Io, caller: &mut Caller, caps: Value) {
    let mut spec = io.spec("d1", json!({"memory": BYTES}));
    (spec["queues"], spec["caps"]) = (json!(QUEUES), caps);
    caller.disk("disk.attach", spec);
}

fn set(caller: &mut Caller, caps: Value) {
    caller.disk("disk.caps", json!({"id": "d1", "caps": caps}));
}

/// Least share of the cap that must be used, and of the requests that each of two queues must get,
/// beside other tests that need the CPUs. The cap's own tests prove 0.97 in simulated time.
const LEAST_SHARE: f64 = 0.2;

/// Checks the amount done in a time against a rate: within 3%, a tenth of a second's worth, and the
/// allowed overdraft.
fn check(done: u64, rate: u64, time: Duration, over: u64) {
    let share = rate as f64 * time.as_secs_f64();
    let (least, most) =
        (share * LEAST_SHARE - over as f64, share * 1.03 + rate as f64 / 10.0 + over as f64);
    assert!((least..=most).contains(&(done as f64)), "{done} of {share}");
}

#[test]
fn requests_keep_to_their_cap_and_no_queue_starves() {
    let io = Io::start_with(&["--reactors", "2"]);
    let mut caller = io.caller();
    attach(&io, &mut caller, json!({"iops": 800}));
    let storm = Storm::start(&io, "d1", 64 << 10);
    let (before, began) = (storm.requests(), Instant::now());
    std::thread::sleep(Duration::from_secs(rounds(3, 300) as u64));
    let (done, time) = (storm.requests(), began.elapsed());
    check(done - before, 800, time, 2 * u64::from(QUEUES));
    for count in &storm.counts {
        let share = count.requests.load(Ordering::Relaxed);
        assert!(share as f64 >= done as f64 * LEAST_SHARE, "{share} of {done}: a queue starves");
    }
    // The statistics show where the time is spent.
    let stats = caller.call("stats", json!({"id": "d1"})).unwrap();
    let stats: model::report::Stats = serde_json::from_value(stats).unwrap();
    let disk = &stats.disks[0];
    assert_eq!(disk.caps.unwrap().iops, Some(800));
    let waited = |stage| {
        let mut all = disk.stages.iter().filter(|one| one.stage == stage && one.op == Op::Write);
        all.next().map_or(0.0, |one| one.times.p50_us)
    };
    assert!(waited(Stage::Cap) > 10.0 * waited(Stage::Device), "{:?}", disk.stages);
    // Without a cap, waiting requests continue at once.
    set(&mut caller, Value::Null);
    assert!(storm.end() < STARVED);
}

#[test]
fn bytes_keep_to_their_cap_also_when_requests_are_larger_than_it() {
    let io = Io::start_with(&["--reactors", "2"]);
    let mut caller = io.caller();
    // The largest request is a quarter of a second's worth, and the tolerance is a tenth.
    let rate = 4 << 20;
    attach(&io, &mut caller, json!({"bytes_per_second": rate}));
    let storm = Storm::start(&io, "d1", SLOT_BYTES);
    let (before, began) = (storm.bytes(), Instant::now());
    std::thread::sleep(Duration::from_secs(rounds(3, 300) as u64));
    // One request of each queue waits, and one more may overdraw.
    check(storm.bytes() - before, rate, began.elapsed(), 3 * SLOT_BYTES as u64);
    set(&mut caller, json!({}));
    assert!(storm.end() < STARVED);
}

#[test]
fn a_burst_is_as_long_as_configured() {
    let io = Io::start_with(&["--reactors", "2"]);
    let mut caller = io.caller();
    attach(&io, &mut caller, json!({"iops": 100, "iops_burst": 2000, "burst_seconds": 2}));
    let storm = Storm::start(&io, "d1", 4096);
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(1000));
    let (early, time) = (storm.requests(), began.elapsed());
    // Some requests completed before the measurement.
    check(early, 2000, time, 200);
    std::thread::sleep(Duration::from_millis(2000));
    let (done, time) = (storm.requests(), began.elapsed());
    // The burst of two seconds, without the regular tokens, and the cap since then.
    let all = 1900.0 * 2.0 + 100.0 * time.as_secs_f64() + 10.0;
    assert!(
        (all * LEAST_SHARE - 4.0..=all * 1.03 + 40.0).contains(&(done as f64)),
        "{done} of {all}"
    );
    set(&mut caller, Value::Null);
    assert!(storm.end() < STARVED);
}

#[test]
fn caps_rewritten_again_and_again_under_a_storm_hang_nobody() {
    let io = Io::start_with(&["--reactors", "2"]);
    let mut caller = io.caller();
    attach(&io, &mut caller, json!({"iops": 100}));
    let storm = Storm::start(&io, "d1", 256 << 10);
    let caps = [
        json!({"iops": 300}),
        json!({"iops": 20, "bytes_per_second": 1 << 20}),
        json!({"bytes_per_second": 8 << 20, "bytes_burst": 64 << 20, "burst_seconds": 5}),
        json!({"iops": 500, "iops_burst": 1000}),
        Value::Null,
        json!({"bytes_per_second": 4096}),
        json!({"iops": 1}),
        json!({"iops": 1u64 << 32, "bytes_per_second": 1u64 << 40}),
        json!({"iops": 1, "iops_burst": 1u64 << 32, "burst_seconds": 86_400}),
        json!({"bytes_per_second": 4096, "bytes_burst": 1u64 << 40, "burst_seconds": 86_400}),
    ];
    let pause = Duration::from_millis(rounds(50, 1000) as u64);
    let mut before = storm.requests();
    for round in 0..rounds(8, 38) {
        for caps in &caps {
            set(&mut caller, caps.clone());
            std::thread::sleep(pause);
        }
        let now = storm.requests();
        assert!(now > before, "nothing in round {round}");
        before = now;
    }
    set(&mut caller, Value::Null);
    assert!(storm.end() < STARVED, "somebody waited too long");
}

#[test]
fn what_waits_for_its_turn_holds_up_no_verb() {
    let io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    attach(&io, &mut caller, json!({"iops": 1}));
    let d1 = json!({"id": "d1"});
    let setup = Setup { queues: QUEUES, ..Setup::default() };
    let mut guest = Guest::start(&io.socket("d1"), &setup).unwrap();
    let writes: Vec<_> = (0..40).map(|at| Request::write(at, &[at as u8 + 1; 512])).collect();
    let pending = guest.submit_all(0, &writes).unwrap();
    guest.kick(0).unwrap();
    eventually("one waits", || caller.stats().disks[0].throttled_queues == 1);
    // At one request per second they would take most of a minute.
    let began = Instant::now();
    assert_eq!(caller.disk("disk.pause", d1.clone()).state, DiskState::Paused);
    caller.disk("disk.resume", d1.clone());
    let base = guest.stop_queue(0).unwrap();
    guest.start_queue(0, base).unwrap();
    guest.kick(0).unwrap();
    // A flush is not charged, and does not wait for requests of another queue.
    assert_eq!(guest.run(1, &Request::flush()).unwrap().status, status::OK);
    caller.disk("disk.deactivate", d1.clone());
    caller.disk("disk.activate", d1.clone());
    assert!(began.elapsed() < STARVED, "{:?}", began.elapsed());
    // The cap still holds: requests that were submitted early are charged as debt.
    assert_eq!(guest.wait(1, Duration::from_millis(1)).unwrap(), WaitEvent::Silent);
    let done = caller.stats().disks[0].requests.write;
    assert!(done < 30, "{done}");
    set(&mut caller, json!({"iops": 1000}));
    let done = guest.finish_all(0, &pending).unwrap();
    assert!(done.iter().all(|one| one.status == status::OK), "{done:?}");
    // A detach succeeds at once even while a request waits.
    set(&mut caller, json!({"iops": 1}));
    guest.submit_all(0, &writes).unwrap();
    guest.kick(0).unwrap();
    let began = Instant::now();
    caller.call("disk.detach", d1).unwrap();
    assert!(began.elapsed() < STARVED, "{:?}", began.elapsed());
}

#[test]
fn caps_that_cannot_be_kept_change_nothing() {
    let io = Io::start();
    let mut caller = io.caller();
    attach(&io, &mut caller, json!({"iops": 500}));
    for (caps, says) in [
        (json!({"iops": 0}), "pause the disk"),
        (json!({"iops": 18_446_744_073_709_551_615u64}), "leave it out"),
        (json!({"iops": 18_446_744_073_709_551_616.0}), "expected u64"),
        (json!({"bytes_burst": 4096}), "give bytes_per_second too"),
        (json!({"iopss": 1}), "iopss"),
    ] {
        let error = caller.call("disk.caps", json!({"id": "d1", "caps": caps})).unwrap_err();
        assert!(error.code == code::INVALID_PARAMS && error.message.contains(says), "{error}");
    }
    assert_eq!(caller.stats().disks[0].caps.unwrap().iops, Some(500));
    let error = caller.call("disk.caps", json!({"id": "d2"})).unwrap_err();
    assert_eq!(error.code, code::NO_SUCH_DISK);
    caller.disk("disk.caps", json!({"id": "d1"}));
    assert_eq!(caller.stats().disks[0].caps, None);
}

#[test]
fn caps_and_pauses_outlive_the_worker() {
    let mut io = Io::start();
    let mut caller = io.caller();
    attach(&io, &mut caller, json!({"iops": 500}));
    let caps = json!({"iops": 70, "iops_burst": 100, "burst_seconds": 9});
    set(&mut caller, caps.clone());
    caller.disk("disk.pause", json!({"id": "d1"}));
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let mut caller = io.caller();
    eventually("it is brought back", || caller.state("d1") == Some(DiskState::Paused));
    let kept = caller.stats().disks[0].caps.unwrap();
    assert_eq!(serde_json::to_value(kept).unwrap(), caps);
}

/// Returns how many reads of one sector complete in `time`.
fn passes(io: &Io, time: Duration) -> u64 {
    let mut queue = Driver::connect(&io.socket("d1"), &Options { slots: 1, ..Options::default() })
        .unwrap()
        .into_queue()
        .unwrap();
    let (until, mut passed) = (Instant::now() + time, 0);
    loop {
        queue.read(0, 0, 512).unwrap();
        queue.finish_one().unwrap();
        if Instant::now() >= until {
            return passed;
        }
        passed += 1;
    }
}

#[test]
fn a_burst_goes_along_with_an_upgrade_and_is_not_gained_by_a_crash() {
    let mut io = Io::start();
    let mut caller = io.caller();
    // A burst of some thousand requests, then one per second.
    let burst = 5000;
    let mut spec = io.spec("d1", json!({"null": BYTES}));
    spec["caps"] = json!({"iops": 1, "iops_burst": burst, "burst_seconds": 1});
    caller.disk("disk.attach", spec);
    let time = Duration::from_secs(2);
    let mut used = passes(&io, time);
    assert!(used > 5, "there is a burst: {used}");
    // However often the worker is upgraded, there is one burst, and one request in each second.
    let began = Instant::now();
    for _ in 0..3 {
        caller.call("upgrade", Value::Null).unwrap();
        caller = io.caller();
        used += passes(&io, time);
    }
    let most = burst + 2 + began.elapsed().as_secs() + time.as_secs();
    assert!(used <= most, "{used} of {most}");
    // After a crash, the used amount is unknown.
    let serves = caller.stats().pid;
    eventually("the worker is the only one", || io.process.worker_pid().unwrap() == Some(serves));
    io.process.worker().unwrap().unwrap().kill().unwrap();
    io.process.next_worker(Some(serves)).unwrap();
    let began = Instant::now();
    let after = passes(&io, time);
    assert!(after <= 2 + began.elapsed().as_secs(), "{after}: a burst was gained");
}
