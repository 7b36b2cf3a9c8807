//! Mutual effects of disks on one reactor, and the diagnosis of `why`: one disk with hung storage,
//! and one that uses the thread.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::*;
use model::diagnosis::{Cause, DiskFacts, DiskVerdict, judge};
use model::report::DiskState;
use rustix::process::Signal;
use serde_json::json;
use testkit::driver::{Driver, Options};
use testkit::process::PROCESS_DEADLINE;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Hanging;

const BYTES: usize = 8 << 20;
const DEADLINE: Duration = Duration::from_millis(500);
/// Upper bound that tells a call from a hang, even on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// Writes that hang, and reads behind them.
const EACH: u64 = 32;

/// Returns the diagnosis of `ringway why` for a disk after watching it for `time`.
fn why(caller: &mut Caller, id: &str, time: Duration) -> DiskVerdict {
    let earlier = caller.stats();
    std::thread::sleep(time);
    let now = caller.stats();
    let full = caller.call("stats", json!({"id": id})).unwrap();
    let full: model::report::Stats = serde_json::from_value(full).unwrap();
    judge(&DiskFacts::new(&earlier, &now, &full.disks[0]))
}

/// Guest that reads one sector after the other on its own thread.
struct Busy {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<Guest>,
}

impl Busy {
    fn start(mut guest: Guest) -> Self {
        let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let done = guest.run(0, &Request::read(0, 4096)).unwrap();
                assert_eq!(done.status, status::OK);
                counted.fetch_add(1, Ordering::Relaxed);
            }
            guest
        });
        Self { stop, count, thread }
    }

    /// Checks that the guest is served now, at any speed.
    fn goes_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        eventually("the neighbour is served", || self.count.load(Ordering::Relaxed) >= before + 10);
    }

    fn end(self) -> Guest {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// `d1`, whose device hangs with writes, reads and a flush, and `d2` on the same reactor.
struct Place {
    io: Io,
    caller: Caller,
    hung: Guest,
    well: Busy,
    device: PathBuf,
    hanging: Hanging,
}

impl Place {
    fn new() -> Self {
        let hanging = Hanging::new().unwrap();
        let device = hanging.device("d", BYTES).unwrap();
        let io = Io::start_with(&["--reactors", "1"]);
        let mut caller = io.caller();
        let mut spec = io.spec("d1", json!({"file": device}));
        spec["stop_deadline_ms"] = json!(DEADLINE.as_millis() as u64);
        caller.disk("disk.attach", spec);
        caller.disk("disk.attach", io.spec("d2", json!({"memory": BYTES})));
        let setup = Setup { queue_size: 256, ..Setup::default() };
        let mut hung = Guest::start(&io.socket("d1"), &setup).unwrap();
        let well = Busy::start(Guest::start(&io.socket("d2"), &Setup::default()).unwrap());
        assert_eq!(hung.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
        hanging.hang().unwrap();
        let mut give = |requests: Vec<Request>| {
            hung.submit_all(0, &requests).unwrap();
            hung.kick(0).unwrap();
            // The reads are queued behind the writes then.
            assert_eq!(hung.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
        };
        give((0..EACH).map(|at| Request::write(at * 8, &[2; 4096])).collect());
        let reads = (0..EACH).map(|at| Request::read(at * 8, 4096));
        give(reads.chain([Request::flush()]).collect());
        Self { io, caller, hung, well, device, hanging }
    }
}

fn in_time<R>(least: Duration, work: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let done = work();
    let took = began.elapsed();
    assert!(took >= least && took < SOON, "{took:?}");
    done
}

#[test]
fn why_names_the_disk_that_hangs_and_nobody_beside_it() {
    let mut place = Place::new();
    let caller = &mut place.caller;
    // A worker that gets no CPU for a moment takes the requests late.
    let mut looks = (0..5).map(|_| why(caller, "d1", Duration::from_millis(700)));
    let hung = looks.find(|hung| hung.cause != Cause::Healthy).unwrap();
    assert_eq!(hung.cause, Cause::StorageHangs, "{hung:?}");
    let others = format!("and {} more with it", 2 * EACH);
    assert!(hung.sentence.starts_with("d1 waits for its storage: a write of 4 KiB"), "{hung:?}");
    assert!(hung.sentence.contains(&others), "{hung:?}");
    assert!(hung.next.unwrap().contains(place.device.to_str().unwrap()));
    place.well.goes_on();
    let well = why(caller, "d2", Duration::from_millis(700));
    assert_eq!(well.neighbour, None, "{well:?}");
    let blamed = [Cause::Neighbour, Cause::StorageHangs, Cause::Stuck];
    assert!(!blamed.contains(&well.cause) && !well.sentence.contains("d1"), "{well:?}");
    place.hanging.answer().unwrap();
    place.well.end();
}

#[test]
fn a_machine_on_a_hung_disk_ends_and_the_disk_is_detached_in_time() {
    let Place { io, mut caller, mut hung, well, hanging, .. } = Place::new();
    // QEMU stops the ring when its machine ends. No reply would be true.
    let stopped = in_time(DEADLINE, || hung.stop_queue(0));
    assert!(stopped.is_err());
    well.goes_on();
    let stuck = caller.stats().disks.into_iter().find(|disk| disk.id == "d1").unwrap();
    assert_eq!(stuck.state, DiskState::Stuck);
    assert_eq!(stuck.stuck.unwrap().requests, 2 * EACH + 1);
    drop(hung);
    // The next machine is answered, and waits.
    let next = in_time(Duration::ZERO, || Guest::start(&io.socket("d1"), &Setup::default()));
    drop(next.unwrap());
    well.goes_on();
    let detached = in_time(Duration::ZERO, || caller.call("disk.detach", json!({"id": "d1"})));
    assert!(detached.unwrap_err().message.contains("mend the storage"));
    assert_eq!(caller.state("d1"), None);
    assert!(!io.socket("d1").exists());
    well.goes_on();
    hanging.answer().unwrap();
    well.end();
}

#[test]
fn a_machine_that_is_killed_leaves_a_hung_disk_that_is_detached_in_time() {
    let Place { io, mut caller, hung, well, hanging, .. } = Place::new();
    // The kernel closes the connection of the dead front-end, so no one waits for a reply.
    drop(hung);
    well.goes_on();
    let detached = in_time(Duration::ZERO, || caller.call("disk.detach", json!({"id": "d1"})));
    assert!(detached.unwrap_err().message.contains("mend the storage"));
    assert!(!io.socket("d1").exists());
    well.goes_on();
    hanging.answer().unwrap();
    well.end();
}

#[test]
fn a_process_with_a_hung_disk_ends_in_time() {
    let Place { mut io, mut hung, well, hanging, .. } = Place::new();
    // The neighbour ends in order, so it has no requests in flight.
    drop(well.end());
    in_time(DEADLINE, || {
        io.process.signal(Signal::TERM).unwrap();
        hung.frontend.connection.wait_closed().unwrap();
        eventually("no socket is left", || names(&io.folder).is_empty());
    });
    // The kernel keeps the thread that waits for the flush until then.
    hanging.answer().unwrap();
    io.process.wait(PROCESS_DEADLINE).unwrap();
}

/// A disk that copies megabytes keeps the reactor busy. The diagnosis of a disk that waits for it
/// names it.
#[test]
fn a_noisy_neighbour_is_named_with_its_share() {
    let io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    for id in ["noisy", "quiet"] {
        caller.disk("disk.attach", io.spec(id, json!({"memory": 64 << 20})));
    }
    let quiet = Busy::start(Guest::start(&io.socket("quiet"), &Setup::default()).unwrap());
    let time = Duration::from_millis(500);
    for _ in 0..3 {
        let alone = why(&mut caller, "quiet", time);
        assert_eq!(alone.neighbour, None, "{alone:?}");
    }
    let options = Options { slots: 32, slot_bytes: 1 << 20, ..Options::default() };
    let mut queue = Driver::connect(&io.socket("noisy"), &options).unwrap().into_queue().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let noise = std::thread::spawn(move || {
        for slot in 0..32 {
            queue.read(u64::from(slot) << 20, slot, 1 << 20).unwrap();
        }
        for _ in 0..32 {
            loop {
                let (slot, result) = queue.finish_one().unwrap();
                assert_eq!(result, 0);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                queue.read(u64::from(slot) << 20, slot, 1 << 20).unwrap();
            }
        }
    });
    // On a busy machine the noisy disk itself may not run for a while.
    let mut verdict = why(&mut caller, "quiet", time);
    let until = Instant::now() + PROCESS_DEADLINE;
    while verdict.cause != Cause::Neighbour {
        assert!(Instant::now() < until, "never: {verdict:?}");
        verdict = why(&mut caller, "quiet", time);
    }
    assert_eq!(verdict.neighbour.as_deref(), Some("noisy"), "{verdict:?}");
    let (_, share) = verdict.sentence.split_once("disk noisy keeps ").unwrap();
    let (share, _) = share.split_once('%').unwrap();
    assert!(share.parse::<u64>().unwrap() >= 15, "{verdict:?}");
    assert!(verdict.next.unwrap().contains("give noisy a cap"));
    // The noisy disk does not get the other one as its cause.
    let other = why(&mut caller, "noisy", time);
    assert_eq!(other.neighbour, None, "{other:?}");
    stop.store(true, Ordering::Relaxed);
    noise.join().unwrap();
    quiet.end();
}
