//! Idle disks and NICs cause no cost and no wakeup. Affinity of threads.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::{Duration, Instant};

use crate::common::frames::{self, SOON, frame};
use crate::common::*;
use serde_json::json;
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const QUEUES: u16 = 4;
/// Queue pairs of a NIC.
const PAIRS: u16 = 2;
/// Interval at which the keeper checks whether its worker is unkillable. No event reports that.
const KEEPER_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Returns turns, sleeps and wakeups of all reactors.
fn reactors(caller: &mut Caller) -> Vec<[u64; 3]> {
    let stats = caller.stats();
    stats.reactors.iter().map(|one| [one.turns, one.sleeps, one.wakeups]).collect()
}

/// Checks that no thread of the worker wakes up, and that the keeper only wakes up for its checks.
fn nothing_wakes(io: &Io) {
    let (mut caller, window) = (io.caller(), stillness());
    let stats = caller.stats();
    let worker = stats.pid;
    assert_ne!(worker, io.process.id());
    // Each statistics call with NICs asks each reactor once.
    let asked = u64::from(!stats.nics.is_empty());
    // Recent events may have effects for a while, but periodic work never ends.
    let until = Instant::now() + PROCESS_DEADLINE;
    loop {
        let before = reactors(&mut caller);
        // Let the thread that has just answered go to sleep.
        std::thread::sleep(Duration::from_millis(100));
        let keeper = || sleeps(io.process.id()).values().sum::<u64>();
        let (asleep, kept) = (sleeps(worker), keeper());
        std::thread::sleep(window);
        let (now, wakeups) = (sleeps(worker), keeper().saturating_sub(kept));
        let after = reactors(&mut caller);
        let wakeups_max = 1 + window.as_secs() / KEEPER_CHECK_INTERVAL.as_secs();
        let counts = before.iter().flatten().zip(after.iter().flatten());
        let are_still = counts.map(|(before, after)| after - before).all(|grown| grown <= asked);
        if are_still && asleep == now && wakeups <= wakeups_max {
            break;
        }
        assert!(
            Instant::now() < until,
            "in {window:?} of idleness reactors went from {before:?} to {after:?}, and threads \
             from {asleep:?} to {now:?}; the keeper woke {wakeups} times"
        );
    }
}

#[test]
fn disks_that_were_used_once_cost_no_wake_up() {
    let disks = testkit::rounds(12, 100);
    let io = Io::start();
    let mut caller = io.caller();
    let mut guests = Vec::new();
    for disk in 0..disks {
        let id = format!("d{disk}");
        let mut spec = io.spec(&id, json!({"memory": 1 << 20}));
        spec["queues"] = json!(QUEUES);
        caller.disk("disk.attach", spec);
        let setup = Setup { queues: QUEUES, memory_bytes: 1 << 20, ..Setup::default() };
        let mut guest = Guest::start(&io.socket(&id), &setup).unwrap();
        for queue in 0..usize::from(QUEUES) {
            let done = guest.run(queue, &Request::write(0, &[7; 4096])).unwrap();
            assert_eq!(done.status, status::OK);
        }
        guests.push(guest);
    }
    nothing_wakes(&io);
    // All guests are still served.
    for guest in &mut guests {
        assert_eq!(guest.run(0, &Request::read(0, 4096)).unwrap().data, [7; 4096]);
    }
}

/// All guests send to the first one over each pair, and receive its frames.
fn speak(guests: &mut [Guest], round: &str) {
    let (first, others) = guests.split_first_mut().unwrap();
    for pair in 0..usize::from(PAIRS) {
        let loud = frame(0xff, 1, round);
        first.pass_frame(pair, &loud).unwrap();
        for (guest, number) in others.iter_mut().zip(2..) {
            assert_eq!(guest.take_frame(0, SOON).unwrap().unwrap().bytes, loud);
            let answer = frame(1, number, round);
            guest.pass_frame(pair, &answer).unwrap();
            assert_eq!(first.take_frame(0, SOON).unwrap().unwrap().bytes, answer);
        }
    }
}

#[test]
fn nics_that_were_used_once_cost_no_wake_up() {
    let nics = testkit::rounds(12, 100);
    let io = Io::start_with(&["--reactors", "2"]);
    let mut guests = Vec::new();
    for number in 1..=nics as u8 {
        let id = format!("n{number}");
        let mut spec = frames::spec(&io, &id, "lan", number);
        spec["queues"] = json!(PAIRS);
        io.caller().call("nic.attach", spec).unwrap();
        guests.push(frames::guest(&io.socket(&id), PAIRS));
    }
    speak(&mut guests, "at first");
    nothing_wakes(&io);
    speak(&mut guests, "still there");
}

/// Returns the numbers of the CPUs that this test may use.
fn cpus() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let numbers = list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    });
    numbers.map(|number| number.to_string()).collect()
}

/// Restricts all threads of a process to these CPUs.
fn pin(process: u32, cpus: &str) {
    let mut command = std::process::Command::new("taskset");
    command.args(["-a", "-p", "-c", cpus]).arg(process.to_string());
    assert!(command.output().unwrap().status.success());
}

#[test]
fn there_are_as_many_reactors_as_usable_cpus_and_the_reason_is_told() {
    let cpus = cpus();
    // The quota of the control group counts too. The program shares it.
    let quota = std::thread::available_parallelism().unwrap().get();
    for few in [&cpus[..1], &cpus[..]] {
        let count = few.len().min(quota);
        let folder = folder();
        let control = folder.path().join("control");
        let words = ["-c", &few.join(","), IO, "--control", control.to_str().unwrap()];
        let _io = ready("taskset", &[&words[..], &["--die-with-parent"]].concat());
        let stats = Caller::connect(&control).stats();
        let (reactors, why) = (stats.reactors.len(), stats.reactors_reason.unwrap());
        if count <= 4 {
            assert_eq!((reactors, why), (count, format!("{count}, one for each of {count} CPUs")));
        } else {
            // The host's memory may limit the number.
            let is_explained = why.starts_with(&format!("{reactors}, "));
            assert!((4..=count.min(16)).contains(&reactors) && is_explained, "{why}");
        }
    }
    let io = Io::start_with(&["--reactors", "256"]);
    let stats = io.caller().stats();
    assert_eq!(
        (stats.reactors.len(), stats.reactors_reason.unwrap().as_str()),
        (256, "256, as --reactors says")
    );
    for many in ["0", "257", "-1", "many"] {
        let control = io.socket("other");
        let option = format!("--reactors={many}");
        let (code, stderr) = ends(IO, &["--control", control.to_str().unwrap(), &option]);
        assert!(code == 2 && stderr.contains("--reactors"), "{stderr}");
    }
}

#[test]
fn cpus_that_are_taken_away_and_given_back_do_no_harm() {
    let all = cpus();
    let ends = [all.first().unwrap(), all.last().unwrap()];
    for poll in ["off", "auto", "always"] {
        let io = Io::start_with(&["--reactors", "3"]);
        let mut caller = io.caller();
        let mut spec = io.spec("d", json!({"memory": 1 << 20}));
        (spec["queues"], spec["poll"]) = (json!(3), json!(poll));
        caller.disk("disk.attach", spec);
        let setup = Setup { queues: 3, ..Setup::default() };
        let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
        let worker = caller.stats().pid;
        for turn in 0..12u8 {
            let cpus = match turn % 3 {
                2 => all.join(","),
                one => ends[usize::from(one)].clone(),
            };
            pin(worker, &cpus);
            for queue in 0..3 {
                let data = [turn ^ queue; 4096];
                let at = u64::from(queue) * 8;
                let done = guest.run(queue.into(), &Request::write(at, &data)).unwrap();
                assert_eq!(done.status, status::OK);
                assert_eq!(guest.run(2, &Request::read(at, 4096)).unwrap().data, data);
            }
        }
    }
}
