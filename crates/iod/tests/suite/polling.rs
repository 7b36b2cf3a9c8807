//! Polling settings, set and changed while disks run.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::common::*;
use model::poll::EffectivePolling;
use model::report::{DiskStats, PollReason, PollStats, QueuePolling, Stats};
use model::rpc::code;
use model::spec::PollMode;
use serde_json::{Value, json};
use testkit::driver::{Driver, Options, Queue};
use testkit::process::Process;
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::rounds;

const BYTES: u64 = 1 << 20;
const QUEUES: u16 = 2;
const SLOTS: u16 = 4;

/// Guests that always send requests, each on its own queue, alternately with one and four in
/// flight. So each queue waits for its driver and for its device.
struct Storm {
    stop: Arc<AtomicBool>,
    done: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
}

impl Storm {
    fn start(socket: &Path) -> Self {
        let options = Options { queues: QUEUES, slots: SLOTS, ..Options::default() };
        let driver = Driver::connect(socket, &options).unwrap();
        let mut storm = Self { stop: Arc::default(), done: Vec::new(), threads: Vec::new() };
        for queue in driver.queues {
            let (stop, done) = (Arc::clone(&storm.stop), Arc::<AtomicU64>::default());
            storm.done.push(Arc::clone(&done));
            storm.threads.push(std::thread::spawn(move || ask(queue, &stop, &done)));
        }
        storm
    }

    /// Checks that all guests are still served: each queue completes further requests.
    fn goes_on(&self) {
        for done in &self.done {
            let before = done.load(Ordering::Relaxed);
            eventually("requests end", || done.load(Ordering::Relaxed) > before + 50);
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn ask(mut queue: Queue, stop: &AtomicBool, done: &AtomicU64) {
    for round in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let depth = if round % 8 < 4 { 1 } else { SLOTS };
        for slot in 0..depth {
            queue.write(u64::from(slot) * 4096, slot, 4096).unwrap();
        }
        for _ in 0..depth {
            let (_, result) = queue.finish_one().unwrap();
            assert_eq!(result, 0, "no setting is an error");
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn disk(caller: &mut Caller, id: &str) -> DiskStats {
    caller.stats().disks.into_iter().find(|disk| disk.id == id).unwrap()
}

fn polling(caller: &mut Caller, id: &str) -> PollStats {
    disk(caller, id).polling.unwrap()
}

/// Returns the polling state of each queue of disk `d`.
fn queues(caller: &mut Caller) -> Vec<QueuePolling> {
    let stats = caller.call("stats", json!({"id": "d"})).unwrap();
    let stats: Stats = serde_json::from_value(stats).unwrap();
    stats.disks[0].each_queue.iter().map(|one| one.polling.unwrap()).collect()
}

fn defaults(caller: &mut Caller) -> EffectivePolling {
    caller.stats().poll_defaults.unwrap()
}

fn poll(caller: &mut Caller, params: Value) {
    caller.disk("disk.poll", params);
}

fn set(mode: PollMode, max_us: u16, idle_threshold: u8) -> EffectivePolling {
    EffectivePolling { mode, max_us, idle_threshold }
}

/// Changes the settings, and waits until the queues use them.
fn does(caller: &mut Caller, params: Value, what: &str, is: impl Fn(&PollStats) -> bool) {
    poll(caller, params);
    eventually(what, || is(&polling(caller, "d")));
}

#[test]
fn what_changes_under_load_takes_effect_and_harms_nobody() {
    let io = Io::start_with(&["--reactors", "2"]);
    let mut caller = io.caller();
    let mut spec = io.spec("d", json!({"memory": BYTES}));
    spec["queues"] = json!(QUEUES);
    caller.disk("disk.attach", spec);
    let storm = Storm::start(&io.socket("d"));
    for _ in 0..rounds(3, 60) {
        // As fast as calls are answered, so that they arrive at every moment of a wait.
        for flip in 0..rounds(40, 400) {
            let params = match flip % 5 {
                0 => json!({"id": "d", "poll": "always"}),
                1 => json!({"id": "d", "poll": "off"}),
                2 => json!({"id": "d", "poll": "auto", "poll_idle_threshold": 0}),
                3 => json!({"id": "d", "poll_max_us": 0}),
                _ => json!({"id": "d", "poll_max_us": 10_000, "poll_idle_threshold": null}),
            };
            poll(&mut caller, params);
            if flip % 10 == 0 {
                caller.call("poll.defaults", json!({"poll_max_us": flip})).unwrap();
            }
        }
        storm.goes_on();
        let always = json!({"id": "d", "poll": "always"});
        does(&mut caller, always, "it is always polled", |one| {
            one.queues.polling && one.queues.reason == PollReason::Always
        });
        let before = polling(&mut caller, "d");
        eventually("looks are counted", || {
            let now = polling(&mut caller, "d");
            now.queues.hits > before.queues.hits
                && now.queues.poll_seconds > before.queues.poll_seconds
        });
        let off = json!({"id": "d", "poll": "off"});
        does(&mut caller, off, "it is not polled", |one| one.queues.reason == PollReason::Off);
        // A queue that was polling at the change continues until its present wait has ended.
        storm.goes_on();
        let before = polling(&mut caller, "d");
        storm.goes_on();
        let now = polling(&mut caller, "d");
        assert!(!now.queues.polling, "{now:?}");
        assert_eq!(
            (now.queues.hits, now.queues.misses),
            (before.queues.hits, before.queues.misses),
            "{now:?}"
        );
        let zero = json!({"id": "d", "poll": "auto", "poll_max_us": 0, "poll_idle_threshold": 0});
        does(&mut caller, zero, "nothing may be spent", |one| {
            !one.queues.polling && one.queues.reason == PollReason::TooLong
        });
        let most = json!({"id": "d", "poll_max_us": 10_000});
        let before = polling(&mut caller, "d");
        does(&mut caller, most, "it finds requests by looking", |one| {
            one.queues.hits > before.queues.hits
        });
    }
    storm.goes_on();
    does(&mut caller, json!({"id": "d", "poll": "always"}), "each queue looks", |_| {
        let queues = queues(&mut io.caller());
        let polls_always = |one: &QueuePolling| one.polling && one.reason == PollReason::Always;
        queues.len() == usize::from(QUEUES) && queues.iter().all(polls_always)
    });
    storm.end();
    eventually("no queue looks", || queues(&mut caller).iter().all(|one| !one.polling));
    let (queues, all) = (queues(&mut caller), disk(&mut caller, "d"));
    let polling = all.polling.unwrap();
    assert_eq!(queues.iter().map(|one| one.hits).sum::<u64>(), polling.queues.hits);
    assert_eq!(queues.iter().map(|one| one.misses).sum::<u64>(), polling.queues.misses);
    assert!(queues.iter().all(|one| one.hits > 0 && one.poll_seconds > 0.0), "{queues:?}");
    let saved: f64 = queues.iter().map(|one| one.saved_wakeup_us).sum();
    assert!((saved - polling.queues.saved_wakeup_us).abs() < 1.0, "{queues:?} of {polling:?}");
    assert_eq!(all.errors, 0);
}

#[test]
fn an_idle_queue_learns_of_a_change_and_sleeps_again() {
    let io = Io::start_with(&["--reactors", "1", "--poll", "off"]);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"null": BYTES})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    let spun = |caller: &mut Caller| caller.stats().reactors[0].poll_seconds;
    let turns = |caller: &mut Caller| caller.stats().reactors[0].turns;
    // No kick follows, so only the call can wake it.
    for _ in 0..rounds(5, 100) {
        let always = json!({"id": "d", "poll": "always"});
        does(&mut caller, always, "it looks", |one| one.queues.reason == PollReason::Always);
        let before = spun(&mut caller);
        eventually("its reactor spins", || spun(&mut caller) > before);
        does(&mut caller, json!({"id": "d", "poll": null}), "it sleeps", |one| !one.queues.polling);
        eventually("its reactor sleeps", || {
            let before = turns(&mut caller);
            std::thread::sleep(std::time::Duration::from_millis(5));
            turns(&mut caller) == before
        });
    }
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    // An unused disk is not polled, whatever its last state was.
    let always = json!({"id": "d", "poll": "always"});
    does(&mut caller, always, "it looks", |one| one.queues.polling);
    drop(guest);
    eventually("nobody is there", || !disk(&mut caller, "d").connected);
    eventually("nothing is looked at", || !polling(&mut caller, "d").queues.polling);
    eventually("its reactor sleeps", || {
        let before = turns(&mut caller);
        std::thread::sleep(std::time::Duration::from_millis(5));
        turns(&mut caller) == before
    });
}

#[test]
fn what_is_out_of_range_or_unknown_changes_nothing() {
    let io = Io::start_with(&["--poll-max-us", "7"]);
    let mut caller = io.caller();
    let mut spec = io.spec("d", json!({"null": BYTES}));
    spec["poll"] = json!("off");
    caller.disk("disk.attach", spec.clone());
    let was = set(PollMode::Off, 7, 75);
    let bad = [
        (json!({"poll": "on"}), "\"auto\", \"off\" or \"always\""),
        (json!({"poll": 1}), "\"auto\", \"off\" or \"always\""),
        (json!({"poll_max_us": 10_001}), "0 to 10000"),
        (json!({"poll_max_us": -1}), "0 to 10000"),
        (json!({"poll_max_us": "50"}), "0 to 10000"),
        (json!({"poll_max_us": 1.5}), "0 to 10000"),
        (json!({"poll_max_us": u64::MAX}), "0 to 10000"),
        (json!({"poll_idle_threshold": 101}), "0 to 100"),
        (json!({"poll_idle_threshold": -1}), "0 to 100"),
        (json!({"poll_idle_threshold": [50]}), "0 to 100"),
        (json!({"max_us": 1}), "max_us"),
    ];
    for (params, says) in &bad {
        let with = |mut base: Value| {
            let fields = params.as_object().unwrap().clone();
            base.as_object_mut().unwrap().extend(fields);
            base
        };
        spec["id"] = json!("e");
        let calls = [
            ("disk.poll", with(json!({"id": "d"}))),
            ("poll.defaults", with(json!({}))),
            ("disk.attach", with(spec.clone())),
        ];
        for (method, params) in calls {
            let error = caller.call(method, params.clone()).unwrap_err();
            let named = error.code == code::INVALID_PARAMS && error.message.contains(says);
            assert!(named, "{method} {params}: {error}");
        }
    }
    assert_eq!(polling(&mut caller, "d").set, was);
    assert_eq!(defaults(&mut caller), set(PollMode::Auto, 7, 75));
    let error = caller.call("disk.poll", json!({"id": "e", "poll": "off"})).unwrap_err();
    assert_eq!(error.code, code::NO_SUCH_DISK);
    let (code, stderr) = ends(IO, &["--control", "/c", "--poll-idle-threshold", "200"]);
    assert!(code == 2 && stderr.contains("0..=100"), "{stderr}");
}

#[test]
fn a_disk_has_its_own_settings_and_inherits_the_others() {
    let io = Io::start_with(&["--poll", "off", "--poll-max-us", "60"]);
    let mut caller = io.caller();
    let mut own = io.spec("own", json!({"null": BYTES}));
    own["poll"] = json!("always");
    caller.disk("disk.attach", own);
    caller.disk("disk.attach", io.spec("plain", json!({"null": BYTES})));
    let both = |caller: &mut Caller| ["own", "plain"].map(|id| polling(caller, id).set);
    let off = set(PollMode::Off, 60, 75);
    assert_eq!(both(&mut caller), [set(PollMode::Always, 60, 75), off]);
    let change = json!({"poll": "auto", "poll_idle_threshold": 20});
    let answer = caller.call("poll.defaults", change).unwrap();
    let auto = set(PollMode::Auto, 60, 20);
    assert_eq!(serde_json::from_value::<EffectivePolling>(answer).unwrap(), auto);
    assert_eq!(both(&mut caller), [set(PollMode::Always, 60, 20), auto]);
    assert_eq!(disk(&mut caller, "plain").poll, PollMode::Auto);
    // Disks attached later have the setting too.
    caller.disk("disk.attach", io.spec("later", json!({"null": BYTES})));
    assert_eq!(polling(&mut caller, "later").set, auto);
    poll(&mut caller, json!({"id": "own", "poll": null, "poll_max_us": 5}));
    assert_eq!(polling(&mut caller, "own").set, set(PollMode::Auto, 5, 20));
    // Calls without a change have no effect.
    poll(&mut caller, json!({"id": "own"}));
    caller.call("poll.defaults", Value::Null).unwrap();
    assert_eq!(both(&mut caller), [set(PollMode::Auto, 5, 20), auto]);
    let nothing = json!({"poll": null, "poll_max_us": null, "poll_idle_threshold": null});
    caller.call("poll.defaults", nothing).unwrap();
    assert_eq!(both(&mut caller), [set(PollMode::Off, 5, 75), off]);
}

/// Starts another keeper for the present worker.
fn keep(io: &Io, options: &[&str]) -> Process {
    let control = io.socket("control");
    ready(IO, &[&["--control", control.to_str().unwrap()], options].concat())
}

#[test]
fn settings_outlive_worker_upgrade_and_keeper() {
    let mut io = Io::lasting(&["--poll-max-us", "60"]);
    let mut caller = io.caller();
    for id in ["own", "plain"] {
        caller.disk("disk.attach", io.spec(id, json!({"memory": BYTES})));
    }
    poll(&mut caller, json!({"id": "own", "poll": "off", "poll_max_us": 0}));
    caller.call("poll.defaults", json!({"poll_idle_threshold": 33})).unwrap();
    let there = |caller: &mut Caller| {
        eventually("both are there", || caller.stats().disks.iter().all(|d| d.polling.is_some()));
        let own = polling(caller, "own").set;
        (own, polling(caller, "plain").set, defaults(caller))
    };
    let plain = set(PollMode::Auto, 60, 33);
    let all = (set(PollMode::Off, 0, 33), plain, plain);
    assert_eq!(there(&mut caller), all);

    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    assert_eq!(there(&mut io.caller()), all, "after kill -9 of the worker");

    // Refused while a disk is still being attached again.
    eventually("it is upgraded", || io.caller().call("upgrade", Value::Null).is_ok());
    assert_eq!(there(&mut io.caller()), all, "after an upgrade");

    let serves = io.caller().stats().pid;
    eventually("the worker is the only one", || io.process.worker_pid().unwrap() == Some(serves));
    let worker = io.process.worker().unwrap().unwrap();
    io.process.kill().unwrap();
    let mut keeper = keep(&io, &["--poll-max-us", "90", "--die-with-parent"]);
    assert_eq!(there(&mut io.caller()), all, "the worker goes on as it was started");
    // Settings by call stay; options are those of the new keeper.
    worker.kill().unwrap();
    keeper.next_worker(None).unwrap();
    let plain = set(PollMode::Auto, 90, 33);
    assert_eq!(there(&mut io.caller()), (set(PollMode::Off, 0, 33), plain, plain));
    assert!(keeper.terminate().unwrap().success(), "{}", keeper.stderr());
}
