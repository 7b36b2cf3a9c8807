//! Guards against polling, tested with real threads, CPUs and quotas.
//!
//! The tests wait for counters, up to the deadline for processes. No test depends on speed. A hit
//! may cost 10 ms here, so that no wait is too long to be polled.
//!
//! Sources: `docs/polling.md`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::*;
use model::diagnosis::{DiskFacts, judge};
use model::report::{PollReason, PollStats};
use serde_json::json;
use testkit::cpus::{self, BusyThreads, Offline, QUIET_DEADLINE, Quota};
use testkit::driver::{Driver, Options};
use testkit::process::{eventually, eventually_by};
use testkit::rounds;

/// Number of busy threads that leave a quarter of a CPU to another thread of the same priority.
const HOGS: usize = 3;
/// Threshold in percent: more than that quarter, and low enough for a machine with other work.
const THRESHOLD: &str = "30";

/// Serializes the tests: each of them makes CPUs busy, or needs an idle one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Disk with a client that sends the next request after each reply, and sleeps in between.
struct Served {
    caller: Caller,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    client: Option<JoinHandle<()>>,
    io: Io,
}

impl Served {
    /// Starts the client on these CPUs. The program runs on the CPUs of the calling thread.
    fn start(threshold: &str, client: Vec<usize>) -> Self {
        Self::by(Io::start_with, threshold, client)
    }

    fn by(start: fn(&[&str]) -> Io, threshold: &str, client: Vec<usize>) -> Self {
        let set = ["--poll-max-us", "10000", "--poll-idle-threshold", threshold];
        let io = start(&[&["--reactors", "1"], &set[..]].concat());
        let mut caller = io.caller();
        caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (asks, counts, socket) = (Arc::clone(&stop), Arc::clone(&done), io.socket("d"));
        let client = std::thread::spawn(move || {
            cpus::pin_thread(&client).unwrap();
            let options = Options { slots: 1, ..Options::default() };
            let mut queue = Driver::connect(&socket, &options).unwrap().into_queue().unwrap();
            while !asks.load(Ordering::Relaxed) {
                queue.write(0, 0, 4096).unwrap();
                assert_eq!(queue.finish_one().unwrap().1, 0);
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { caller, stop, done, client: Some(client), io }
    }

    fn now(&mut self) -> PollStats {
        self.caller.stats().disks[0].polling.unwrap()
    }

    /// Polls the statistics until a condition holds. It depends on other work of the machine, so no
    /// event reports it.
    fn polls(&mut self, what: &str, is_so: impl Fn(&PollStats) -> bool) {
        let until = Instant::now() + QUIET_DEADLINE;
        loop {
            let now = self.now();
            if is_so(&now) {
                return;
            }
            assert!(Instant::now() < until, "never {what}, or other work left no CPU: {now:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the disk is polled and polling finds requests.
    fn is_polled(&mut self) {
        let before = self.now().queues.hits;
        self.polls("polled", |now| {
            now.queues.hits > before + 100 && now.queues.reason == PollReason::Pays
        });
    }

    /// Waits until a CPU counts as idle for the disk, even if other threads need it now and then.
    fn has_a_cpu(&mut self) {
        let refused = |disk: &mut Self| refusals(&disk.now(), PollReason::NoFreeCpu);
        let until = Instant::now() + QUIET_DEADLINE;
        loop {
            let (before, done) = (refused(self), self.done.load(Ordering::Relaxed));
            eventually_by(until, "it is served", || self.done.load(Ordering::Relaxed) > done + 20);
            if refused(self) == before {
                return;
            }
            assert!(Instant::now() < until, "no CPU is free, or other work left none");
        }
    }

    /// Waits until the disk sleeps for this reason, checks that it is counted and reported, and
    /// that the disk is served.
    fn is_refused(&mut self, reason: PollReason, expected: &str) {
        let before = refusals(&self.now(), reason);
        self.polls(&format!("refused by {reason:?}"), |now| {
            now.queues.reason == reason && refusals(now, reason) > before
        });
        let done = self.done.load(Ordering::Relaxed);
        // Beside other work, a worker that is deferred needs long for that.
        let until = Instant::now() + QUIET_DEADLINE;
        eventually_by(until, "it is served", || self.done.load(Ordering::Relaxed) > done + 20);
        eventually("the reason is told", || {
            let stats = self.caller.stats();
            let verdict = judge(&DiskFacts::new(&stats, &stats, &stats.disks[0]));
            verdict.polling.is_some_and(|text| text.contains(expected))
        });
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.client.take().unwrap().join().unwrap();
        assert_eq!(self.caller.stats().disks[0].errors, 0);
    }

    /// Returns the process ID of the worker.
    fn worker(&self) -> u32 {
        self.io.process.worker().unwrap().unwrap().id()
    }
}

fn refusals(polling: &PollStats, reason: PollReason) -> u64 {
    match reason {
        PollReason::NoFreeCpu => polling.refused.no_free_cpu,
        PollReason::CpuWanted => polling.refused.cpu_wanted,
        PollReason::QuotaUsed => polling.refused.quota_used,
        other => panic!("{other:?} is no guard's"),
    }
}

#[test]
fn while_all_cpus_are_busy_it_is_not_polled() {
    let _alone = alone();
    let all = cpus::mine().unwrap();
    let mut disk = Served::start(THRESHOLD, all.clone());
    for _ in 0..rounds(1, 5) {
        disk.is_polled();
        let hogs = BusyThreads::start(&all, HOGS).unwrap();
        disk.is_refused(PollReason::NoFreeCpu, "no CPU is free: 30% of one must be free");
        drop(hogs);
    }
    disk.is_polled();
    disk.end();
}

#[test]
fn a_client_on_the_same_cpu_wants_it() {
    let _alone = alone();
    let all = cpus::mine().unwrap();
    let (here, elsewhere) = (all[0], all.last().copied().unwrap());
    cpus::pin_thread(&[here]).unwrap();
    // A threshold of 0 disables the other guard, so any CPU load passes it.
    let mut disk = Served::start("0", vec![here]);
    disk.is_refused(PollReason::CpuWanted, "other threads want the CPU");
    if here != elsewhere {
        cpus::confine(disk.worker(), &[elsewhere]).unwrap();
        disk.is_polled();
    }
    disk.end();
}

#[test]
fn a_process_that_is_given_one_cpu_counts_that_one_only() {
    let _alone = alone();
    let all = cpus::mine().unwrap();
    let (one, other) = (all[0], all.last().copied().unwrap());
    assert_ne!(one, other, "this needs two CPUs");
    cpus::pin_thread(&[one]).unwrap();
    let mut disk = Served::by(|options| Io::through(&["setsid"], options), THRESHOLD, vec![other]);
    // The disk must first learn that polling pays, which takes long beside busy threads.
    disk.is_polled();
    // Otherwise half of the CPU would belong to its session, however many busy threads there are.
    cpus::defer(disk.worker()).unwrap();
    let hogs = BusyThreads::start(&[one], HOGS).unwrap();
    disk.is_refused(PollReason::NoFreeCpu, "no CPU is free");
    for _ in 0..rounds(1, 5) {
        // Change the CPUs while the disk is served.
        let worker = disk.worker();
        cpus::confine(worker, &[other]).unwrap();
        disk.has_a_cpu();
        cpus::confine(worker, &[one]).unwrap();
        disk.is_refused(PollReason::NoFreeCpu, "no CPU is free");
        cpus::confine(worker, &all).unwrap();
        disk.has_a_cpu();
        cpus::confine(worker, &[one]).unwrap();
        disk.is_refused(PollReason::NoFreeCpu, "no CPU is free");
    }
    drop(hogs);
    cpus::confine(disk.worker(), &all).unwrap();
    disk.is_polled();
    disk.end();
}

#[test]
fn a_quota_is_not_spent_on_polling() {
    let _alone = alone();
    // The lowest threshold: a machine with other work has that much idle CPU time.
    let mut disk = Served::start("1", cpus::mine().unwrap());
    let Some(quota) = Quota::new().unwrap() else { return disk.end() };
    quota.enclose(disk.io.process.id()).unwrap();
    quota.enclose(disk.worker()).unwrap();
    for _ in 0..rounds(1, 3) {
        disk.is_polled();
        quota.set(Some(90)).unwrap();
        disk.is_refused(PollReason::QuotaUsed, "the CPU quota of its control group");
        quota.set(Some(400)).unwrap();
    }
    disk.is_polled();
    quota.set(None).unwrap();
    disk.is_polled();
    disk.end();
}

#[test]
#[ignore = "takes a CPU from everything else that runs"]
fn a_cpu_that_goes_offline_and_comes_back_is_noticed() {
    let _alone = alone();
    let all = cpus::mine().unwrap();
    let (stays, goes) = (all[0], all.last().copied().unwrap());
    assert_ne!(stays, goes, "this needs two CPUs");
    let mut disk = Served::start(THRESHOLD, all.clone());
    for round in 0..rounds(3, 20) {
        // Busy threads would push reactor and client to the same CPU, so run without them here.
        disk.is_polled();
        if round % 2 == 1 {
            // Move the reactor to this CPU as well.
            cpus::confine(disk.worker(), &[goes]).unwrap();
        }
        let offline = Offline::take(goes).unwrap();
        let hogs = BusyThreads::start(&[stays], HOGS).unwrap();
        disk.is_refused(PollReason::NoFreeCpu, "no CPU is free");
        drop(hogs);
        drop(offline);
        cpus::confine(disk.worker(), &all).unwrap();
    }
    disk.is_polled();
    disk.end();
}
