//! Upgrades that are interrupted, or that a process does not finish.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::actor::{play, script};
use crate::common::*;
use model::report::DiskState;
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Worker};
use testkit::raw::guest::{WaitEvent, wait_readable};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};
use testkit::storage::Hanging;

fn upgrade(caller: &mut Caller, binary: Option<&str>) -> Result<u32, String> {
    let params = binary.map_or(Value::Null, |binary| json!({"binary": binary}));
    let reply = caller.call("upgrade", params).map_err(|error| error.message)?;
    Ok(reply["pid"].as_u64().unwrap() as u32)
}

fn has_ended(worker: &Worker, patience: Duration) -> bool {
    wait_readable(&[worker.ended().as_fd()], patience).unwrap().is_some()
}

/// Makes a worker with a thread that sleeps in hung storage, for a disk that is detached.
fn sleepy(io: &Io, caller: &mut Caller, hanging: &Hanging, path: &Path) {
    let mut spec = io.spec("hangs", json!({"file": path}));
    spec["stop_deadline_ms"] = json!(300);
    caller.disk("disk.attach", spec);
    let mut guest = Guest::start(&io.socket("hangs"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
    hanging.hang().unwrap();
    guest.submit(0, &Request::write(8, &[2; 4096])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    // The disk is detached all the same.
    assert!(caller.call("disk.detach", json!({"id": "hangs"})).is_err());
}

fn kill(worker: u32) {
    let worker = rustix::process::Pid::from_raw(worker as i32).unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
}

fn run(guest: &mut Guest, sector: u64) {
    assert_eq!(guest.run(0, &Request::write(sector, &[3; 512])).unwrap().status, status::OK);
}

#[test]
fn a_giver_that_cannot_end_keeps_no_connection() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", 1 << 20).unwrap();
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("well", json!({"memory": 1 << 20})));
    let mut well = Guest::start(&io.socket("well"), &Setup::default()).unwrap();
    run(&mut well, 0);
    sleepy(&io, &mut caller, &hanging, &path);
    let giver = io.process.worker().unwrap().unwrap();
    let taker = upgrade(&mut caller, None).unwrap();
    run(&mut well, 1);
    assert!(!has_ended(&giver, Duration::from_millis(300)), "its storage hangs");
    // Front-ends see the end of the serving process.
    kill(taker);
    well.frontend.connection.wait_closed().unwrap();
    let mut well = Guest::start(&io.socket("well"), &Setup::default()).unwrap();
    run(&mut well, 2);
    hanging.answer().unwrap();
    assert!(has_ended(&giver, PROCESS_DEADLINE));
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, 1);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_caller_that_reads_nothing_does_not_keep_the_giver() {
    let mut io = Io::start();
    // Send as many calls as the socket holds replies. The worker waits in the next reply.
    let fill = |count: usize| {
        let mut caller = io.caller();
        caller.send_line(&b"{}\n".repeat(count));
        caller
    };
    let unread = |caller: &Caller| rustix::io::ioctl_fionread(caller.stream()).unwrap();
    let caller = fill(4096);
    let mut full = unread(&caller);
    loop {
        std::thread::sleep(Duration::from_millis(300));
        if std::mem::replace(&mut full, unread(&caller)) == full {
            break;
        }
    }
    let mut answered = fill(1);
    let one = {
        let mut line = String::new();
        answered.read_line(&mut line);
        line.len() as u64
    };
    drop((caller, answered));
    let giver = io.process.worker().unwrap().unwrap();
    let mut caller = fill((full / one) as usize);
    caller.send_line(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"upgrade\"}\n");
    assert!(has_ended(&giver, PROCESS_DEADLINE), "it waits for its caller");
    assert_ne!(io.caller().stats().pid, giver.id());
    drop(caller);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_disk_that_cannot_go_on_is_refused_and_comes_back() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let shape = Shape { queues: 1, depth: 8, seed: 7, ..Shape::default() };
    caller.disk("disk.attach", io.spec("d", json!({"memory": 4 << 20})));
    let mut guest = ReconnectingGuest::connect(&io.socket("d"), shape).unwrap();
    assert_eq!(guest.run(Instant::now() + Duration::from_millis(50)).unwrap(), End::Time);
    let pid = caller.stats().pid;
    let starves = play(&io, "starves");
    let error = upgrade(&mut caller, Some(&starves)).unwrap_err();
    assert!(error.contains("let it starve"), "{error}");
    let stats = caller.stats();
    assert_eq!((stats.pid, stats.disks[0].state), (pid, DiskState::Refused));
    let reason = stats.disks[0].refused.clone().unwrap();
    assert!(reason.contains("Too many open files"), "{reason}");
    assert_eq!(guest.run(Instant::now() + PROCESS_DEADLINE).unwrap(), End::Closed);
    // The restore is retried without a request.
    limit_open_files(pid, 1 << 10);
    guest.reconnect().unwrap();
    assert_eq!(guest.run(Instant::now() + Duration::from_millis(50)).unwrap(), End::Time);
    guest.finish().unwrap();
    assert_eq!(caller.state("d"), Some(DiskState::Active));
    upgrade(&mut caller, None).unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn one_that_takes_over_and_hangs_is_replaced_by_the_keepers_own_program() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 4 << 20})));
    let shape = Shape { queues: 1, depth: 8, seed: 8, ..Shape::default() };
    let mut guest = ReconnectingGuest::connect(&io.socket("d"), shape).unwrap();
    assert_eq!(guest.run(Instant::now() + Duration::from_millis(50)).unwrap(), End::Time);
    let stalls = play(&io, "stalls");
    upgrade(&mut caller, Some(&stalls)).unwrap();
    assert_eq!(guest.run(Instant::now() + PROCESS_DEADLINE).unwrap(), End::Closed);
    let killed = "killing the new worker, it does not serve";
    eventually("it is killed", || io.process.stderr().contains(killed));
    while let Err(error) = guest.reconnect() {
        assert!(error.is_hang_up(), "{error}");
    }
    guest.finish().unwrap();
    let stats = io.caller().stats();
    assert_eq!(stats.keeper.unwrap().restarts, 1);
    assert_eq!(std::fs::read_link(format!("/proc/{}/exe", stats.pid)).unwrap(), Path::new(IO));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_new_worker_that_sleeps_in_storage_holds_nothing_up() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", 4096).unwrap();
    hanging.hang().unwrap();
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    play(&io, "sleeps");
    let play = std::fs::read_to_string(io.folder.path().join("successor")).unwrap();
    let play = play.trim_start_matches("#!/bin/sh\n");
    let sleeps = script(&io, &format!("export RINGWAY_TEST_PATH={}\n{play}", path.display()));
    let error = upgrade(&mut caller, Some(&sleeps)).unwrap_err();
    assert!(error.contains("did not answer in time"), "{error}");
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    run(&mut guest, 0);
    // The process was killed and still exists.
    let error = upgrade(&mut caller, None).unwrap_err();
    assert!(error.contains("was killed and has not ended yet: storage hangs"), "{error}");
    let pid = caller.stats().pid;
    kill(pid);
    // The keeper does not wait for the old process when the new one dies.
    guest.frontend.connection.wait_closed().unwrap();
    let stats = io.caller().stats();
    assert_ne!(stats.pid, pid);
    assert_eq!(stats.keeper.unwrap().restarts, 1);
    hanging.answer().unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
