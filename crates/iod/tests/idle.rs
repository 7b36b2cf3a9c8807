//! What disks that nobody uses cost: nothing, not even a wake-up; and where threads may run.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::*;
use serde_json::json;
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const QUEUES: u16 = 4;
/// The keeper looks so often whether its worker was killed and cannot end: no event tells of that.
const KEEPER_LOOKS: Duration = Duration::from_secs(5);

/// Of each thread of a process: its name, and how often it slept.
fn sleeps(pid: u32) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = entries.filter_map(|entry| {
        let path = entry.unwrap().path();
        // It may have ended.
        let text = std::fs::read_to_string(path.join("status")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        let id = path.file_name().unwrap().to_string_lossy().into_owned();
        let count = field("voluntary_ctxt_switches:").parse().unwrap();
        Some((format!("{} {id}", field("Name:")), count))
    });
    threads.collect()
}

/// Turns, sleeps and wake-ups of all reactors.
fn reactors(caller: &mut Caller) -> Vec<[u64; 3]> {
    let stats = caller.stats();
    stats.reactors.iter().map(|one| [one.turns, one.sleeps, one.wakeups]).collect()
}

#[test]
fn disks_that_were_used_once_cost_no_wake_up() {
    let disks = testkit::rounds(12, 100);
    // Whatever is due at all, and does not come in this time, is no part of a percent.
    let window = Duration::from_secs(testkit::rounds(3, 10) as u64);
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
    let worker = caller.stats().pid;
    assert_ne!(worker, io.process.id());
    // What has just happened may have consequences for a while; what is periodic never ends.
    let until = Instant::now() + PROCESS_DEADLINE;
    loop {
        let before = reactors(&mut caller);
        // The thread that has just answered goes to sleep.
        std::thread::sleep(Duration::from_millis(100));
        let keeper = || sleeps(io.process.id()).values().sum::<u64>();
        let (asleep, kept) = (sleeps(worker), keeper());
        std::thread::sleep(window);
        let (now, looks) = (sleeps(worker), keeper().saturating_sub(kept));
        let after = reactors(&mut caller);
        let looks_max = 1 + window.as_secs() / KEEPER_LOOKS.as_secs();
        if before == after && asleep == now && looks <= looks_max {
            break;
        }
        assert!(
            Instant::now() < until,
            "in {window:?} of idleness reactors went from {before:?} to {after:?}, and threads \
             from {asleep:?} to {now:?}; the keeper woke {looks} times"
        );
    }
    // They are all served yet.
    for guest in &mut guests {
        assert_eq!(guest.run(0, &Request::read(0, 4096)).unwrap().data, [7; 4096]);
    }
}

/// CPUs that this test may use, by number.
fn cpus() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let numbers = list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    });
    numbers.map(|number| number.to_string()).collect()
}

/// Lets all threads of a process run on these CPUs only.
fn pin(process: u32, cpus: &str) {
    let mut command = std::process::Command::new("taskset");
    command.args(["-a", "-p", "-c", cpus]).arg(process.to_string());
    assert!(command.output().unwrap().status.success());
}

#[test]
fn there_are_as_many_reactors_as_usable_cpus_and_the_reason_is_told() {
    let cpus = cpus();
    // Also by the quota of the control group, which is the program's too.
    let quota = std::thread::available_parallelism().unwrap().get();
    for few in [&cpus[..1], &cpus[..]] {
        let count = few.len().min(quota);
        let folder = folder();
        let control = folder.path().join("control");
        let words = ["-c", &few.join(","), IO, "--control", control.to_str().unwrap()];
        let _io = ready("taskset", &[&words[..], &["--die-with-parent"]].concat());
        let stats = Caller::connect(&control).stats();
        let (reactors, why) = (stats.reactors.len(), stats.reactors_why.unwrap());
        if count <= 4 {
            assert_eq!((reactors, why), (count, format!("{count}, one for each of {count} CPUs")));
        } else {
            // As the host's memory allows.
            let told = why.starts_with(&format!("{reactors}, "));
            assert!((4..=count.min(16)).contains(&reactors) && told, "{why}");
        }
    }
    let io = Io::start_with(&["--reactors", "256"]);
    let stats = io.caller().stats();
    assert_eq!(
        (stats.reactors.len(), stats.reactors_why.unwrap().as_str()),
        (256, "256, as --reactors says")
    );
    for many in ["0", "257", "-1", "many"] {
        let control = io.socket("other");
        let option = format!("--reactors={many}");
        let (code, said) = ends(IO, &["--control", control.to_str().unwrap(), &option]);
        assert!(code == 2 && said.contains("--reactors"), "{said}");
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
