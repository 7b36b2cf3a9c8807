//! Workers that hand over to the next one while guests run.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::{Duration, Instant};

use crate::actor::{play, script};
use crate::common::*;
use model::report::DiskState;
use model::rpc::{RpcError, UpgradeReply, code};
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};
use testkit::storage::Hanging;

pub(crate) fn upgrade(caller: &mut Caller, binary: Option<&str>) -> Result<UpgradeReply, RpcError> {
    let params = binary.map_or(Value::Null, |binary| json!({"binary": binary}));
    Ok(serde_json::from_value(caller.call("upgrade", params)?).unwrap())
}

/// Upgrades like [`upgrade`], with disks under load. It is repeated if the host's storage takes
/// longer for a flush than the drain deadline.
pub(crate) fn upgrade_loaded(
    caller: &mut Caller,
    binary: Option<&str>,
) -> Result<UpgradeReply, RpcError> {
    let mut outcome = upgrade(caller, binary);
    eventually("storage ends what it has", || {
        let slow = |error: &RpcError| error.message.contains("the requests in flight in time");
        let again = outcome.as_ref().is_err_and(slow);
        if again {
            outcome = upgrade(caller, binary);
        }
        !again
    });
    outcome
}

pub(crate) fn shape(queues: u16, depth: u16, seed: u64) -> Shape {
    Shape { queues, depth, seed, ..Shape::default() }
}

fn work(guest: &mut ReconnectingGuest, millis: u64) {
    assert_eq!(guest.run(Instant::now() + Duration::from_millis(millis)).unwrap(), End::Time);
}

/// Guest under load on its own thread, until `finish` is called.
pub(crate) struct Loaded {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<u64>,
}

impl Loaded {
    pub(crate) fn start(mut guest: ReconnectingGuest) -> Self {
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            while stopped.try_recv().is_err() {
                work(&mut guest, 5);
            }
            guest.finish().unwrap();
            let tally = guest.tally();
            assert_eq!((tally.survived, tally.outages.len()), (0, 0), "a connection ended");
            tally.completed
        });
        Self { stop, thread }
    }

    pub(crate) fn finish(self) -> u64 {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

/// Starts three disks of different kinds under load.
fn loaded(io: &Io, caller: &mut Caller) -> Vec<Loaded> {
    let bytes = 4 << 20;
    let file = json!({"file": image(&io.folder, "a.raw", bytes)});
    let disks = [("file", file.clone()), ("cached", file), ("memory", json!({"memory": bytes}))];
    let mut guests = Vec::new();
    for (number, (id, backend)) in (1u16..).zip(disks) {
        let mut spec = io.spec(id, backend);
        spec["queues"] = json!(2);
        if id == "cached" {
            spec["backend"] = json!({"file": image(&io.folder, "b.raw", bytes)});
            spec["cache"] = json!("writeback");
        }
        caller.disk("disk.attach", spec);
        let shape = shape(2, 16 * number, number.into());
        guests.push(Loaded::start(ReconnectingGuest::connect(&io.socket(id), shape).unwrap()));
    }
    guests
}

#[test]
fn guests_under_load_do_not_notice() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let guests = loaded(&io, &mut caller);
    let mut paused = Vec::new();
    let mut last = caller.stats().pid;
    for _ in 0..testkit::rounds(5, 50) {
        let reply = upgrade_loaded(&mut caller, None).unwrap();
        // The caller gets its reply, and has to reconnect.
        assert!(caller.receive().is_none());
        assert_eq!(reply.disks, 3);
        caller = io.caller();
        assert_eq!(caller.stats().pid, reply.pid);
        assert_ne!(last, reply.pid);
        eventually("all go on", || {
            caller.stats().disks.iter().all(|disk| disk.connected && disk.queues_started == 2)
        });
        last = reply.pid;
        paused.push(reply.paused_ms);
    }
    let completed: Vec<_> = guests.into_iter().map(Loaded::finish).collect();
    paused.sort_by(f64::total_cmp);
    println!("{completed:?} requests; guests waited {paused:.1?} ms");
    assert_eq!(caller.stats().keeper.unwrap().restarts, 0);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["a.raw", "b.raw"]);
}

fn refused(caller: &mut Caller, binary: &str, why: &str) {
    let error = upgrade_loaded(caller, Some(binary)).unwrap_err();
    assert_eq!(error.code, code::FAILED, "{error}");
    assert!(error.message.starts_with("upgrade cancelled, this process continues"), "{error}");
    assert!(error.message.contains(why), "{error}");
}

#[test]
fn a_new_worker_that_is_none_changes_nothing() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let guests = loaded(&io, &mut caller);
    let pid = caller.stats().pid;
    let dies = script(&io, "exit 3");
    refused(&mut caller, &dies, "the other worker has ended");
    let killed = script(&io, "kill -9 $$");
    refused(&mut caller, &killed, "the other worker has ended");
    let began = Instant::now();
    let hangs = script(&io, "exec sleep 1000");
    refused(&mut caller, &hangs, "did not answer in time");
    // The destination had 5 seconds to start, during which guests were served.
    assert!(began.elapsed() >= Duration::from_secs(5));
    refused(&mut caller, "/bin/true", "the other worker has ended");
    refused(&mut caller, "/no/such/program", "cannot start /no/such/program: No such file");
    refused(&mut caller, "/dev/null", "cannot start /dev/null: Permission denied");
    let folder = io.folder.path().to_str().unwrap().to_owned();
    refused(&mut caller, &folder, "Permission denied");
    let error = caller.call("upgrade", json!({"binary": "ringway-io"})).unwrap_err();
    assert_eq!(error.code, code::INVALID_PARAMS);

    assert_eq!(caller.stats().pid, pid);
    guests.into_iter().for_each(|guest| assert!(guest.finish() > 0));
    // None of the destinations is left: the keeper has one child.
    assert_eq!(io.process.worker_pid().unwrap(), Some(pid));
    upgrade_loaded(&mut caller, None).unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_new_worker_that_does_not_take_over_changes_nothing() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let guests = loaded(&io, &mut caller);
    let pid = caller.stats().pid;
    for (part, why) in [
        ("future", "the new worker reads formats 98 to 99 of the state, this one writes 1 to 1"),
        ("past", "reads formats 0 to 0"),
        ("future disks", "reads formats 98 to 99 of the record of a disk, this one writes 1 to 4"),
        // A destination from before disk formats were reported, and one that reads newer formats.
        ("tells old", "refused: format null"),
        ("tells novel", "refused: format 4"),
        ("odd", "unexpected message"),
        ("eager", "unexpected message"),
        ("dies", "the other worker has ended"),
        ("refuses", "refused: not today"),
        ("babbles", "unexpected message"),
        ("gets everything and dies", "the other worker has ended"),
        ("hangs", "did not answer in time"),
    ] {
        let binary = play(&io, &format!("'{part}'"));
        refused(&mut caller, &binary, why);
        assert_eq!(caller.stats().pid, pid, "{part}");
    }
    for _ in 0..testkit::rounds(5, 100) {
        // The destination may die before or after the keeper knows it as the successor.
        let binary = play(&io, "'dies late'");
        let error = upgrade_loaded(&mut caller, Some(&binary)).unwrap_err();
        assert!(error.message.contains("has ended"), "{error}");
    }
    assert_eq!(caller.stats().pid, pid);
    guests.into_iter().for_each(|guest| assert!(guest.finish() > 0));
    assert_eq!(io.process.worker_pid().unwrap(), Some(pid));
    assert_eq!(caller.stats().keeper.unwrap().restarts, 0);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_new_worker_that_dies_when_it_serves_is_a_death_like_any_other() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 4 << 20})));
    let mut guest = ReconnectingGuest::connect(&io.socket("d"), shape(1, 32, 9)).unwrap();
    work(&mut guest, 50);
    let binary = play(&io, "goes");
    upgrade(&mut caller, Some(&binary)).unwrap();
    while guest.run(Instant::now() + Duration::from_millis(100)).unwrap() == End::Closed {
        while let Err(error) = guest.reconnect() {
            // The connection may have reached the worker that was about to die.
            assert!(error.is_hang_up(), "{error}");
        }
    }
    guest.finish().unwrap();
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, 1);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn disks_keep_their_state() {
    let numbers = folder();
    let numbers = numbers.path().join("metrics");
    let mut io = Io::start_with(&["--metrics", &format!("unix:{}", numbers.display())]);
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", 1 << 20);
    caller.disk("disk.attach", io.spec("file", json!({"file": path})));
    let mut idle = io.spec("idle", json!({"memory": 4096}));
    idle["activate"] = json!(false);
    caller.disk("disk.attach", idle);
    for id in ["paused", "memory"] {
        caller.disk("disk.attach", io.spec(id, json!({"memory": 1 << 20})));
    }
    caller.disk("disk.attach", io.spec("null", json!({"null": 4096})));
    caller.disk("disk.resize", json!({"id": "null", "size": 8192}));
    caller.disk("disk.resize", json!({"id": "memory", "size": 2 << 20}));
    caller.disk("disk.resize", json!({"id": "file", "size": 2 << 20}));
    let mut guest = Guest::start(&io.socket("memory"), &Setup::default()).unwrap();
    let mut waiting = Guest::start(&io.socket("paused"), &Setup::default()).unwrap();
    let mut early = Guest::start(&io.socket("idle"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(4000, &[7; 512])).unwrap().status, status::OK);
    caller.disk("disk.pause", json!({"id": "paused"}));
    let before = caller.stats();

    for _ in 0..2 {
        upgrade(&mut caller, None).unwrap();
        caller = io.caller();
    }
    let after = caller.stats();
    let shape = |stats: &model::report::Stats| -> Vec<_> {
        let disks = stats.disks.iter();
        disks.map(|d| (d.id.clone(), d.state, d.geometry, d.features)).collect()
    };
    eventually("front-ends are known", || shape(&caller.stats()) == shape(&before));
    drop(after);
    // The socket is free when the former worker has ended.
    eventually("metrics are served", || {
        let Ok(mut scraper) = std::os::unix::net::UnixStream::connect(&numbers) else {
            return false;
        };
        let ask = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let mut page = String::new();
        std::io::Write::write_all(&mut scraper, ask).is_ok()
            && std::io::Read::read_to_string(&mut scraper, &mut page).is_ok()
            && page.contains("ringway_build_info")
    });
    assert_eq!(guest.run(0, &Request::read(4000, 512)).unwrap().data, [7; 512]);
    assert_eq!(names(&io.folder).iter().filter(|name| name.ends_with(".lock")).count(), 6);

    // An unserved request waits through the upgrade, and completes later as if nothing had
    // happened.
    let late = waiting.submit(0, &Request::write(0, &[8; 512])).unwrap();
    let first = early.submit(0, &Request::read(0, 512)).unwrap();
    caller.disk("disk.resume", json!({"id": "paused"}));
    caller.disk("disk.activate", json!({"id": "idle"}));
    assert_eq!(waiting.finish(0, &late).unwrap().status, status::OK);
    assert_eq!(early.finish(0, &first).unwrap().status, status::OK);
    // The lock is held all the time: a second writer is refused.
    let other = Io::start();
    let second = other.spec("x", json!({"file": io.folder.path().join("a.raw")}));
    assert!(other.caller().call("disk.attach", second).is_err());
    // The new worker serves its socket, also for later front-ends.
    drop(guest);
    let mut guest = Guest::start(&io.socket("memory"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(4000, 512)).unwrap().data, [7; 512]);
    caller.call("disk.detach", json!({"id": "null"})).unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn storage_that_hangs_holds_an_upgrade_up_and_no_guest() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", 1 << 20).unwrap();
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("hangs", json!({"file": path})));
    caller.disk("disk.attach", io.spec("well", json!({"memory": 4 << 20})));
    let mut guest = Guest::start(&io.socket("hangs"), &Setup::default()).unwrap();
    let well = ReconnectingGuest::connect(&io.socket("well"), shape(1, 16, 3)).unwrap();
    let well = Loaded::start(well);
    assert_eq!(guest.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
    let pid = caller.stats().pid;
    hanging.hang().unwrap();
    let hung = guest.submit(0, &Request::write(8, &[2; 4096])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    for _ in 0..2 {
        // The first upgrade fails after its drain deadline. The second one is refused before any
        // guest waits.
        let error = upgrade(&mut caller, None).unwrap_err();
        assert!(error.message.contains("\"hangs\" cannot be handed over"), "{error}");
        assert!(error.message.contains("has not ended the requests in flight"), "{error}");
        assert_eq!(caller.stats().pid, pid);
    }
    hanging.answer().unwrap();
    assert_eq!(guest.finish(0, &hung).unwrap().status, status::OK);
    upgrade(&mut caller, None).unwrap();
    assert_eq!(guest.run(0, &Request::read(8, 512)).unwrap().data, [2; 512]);
    well.finish();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_front_end_that_stops_within_a_message_holds_nobody_up() {
    let mut io = Io::start();
    let mut caller = io.caller();
    for id in ["rude", "well"] {
        caller.disk("disk.attach", io.spec(id, json!({"memory": 4 << 20})));
    }
    let well =
        Loaded::start(ReconnectingGuest::connect(&io.socket("well"), shape(1, 16, 4)).unwrap());
    let mut rude = std::os::unix::net::UnixStream::connect(io.socket("rude")).unwrap();
    std::io::Write::write_all(&mut rude, &[1, 0, 0, 0, 1]).unwrap();
    eventually("it is connected", || caller.stats().disks.iter().all(|disk| disk.connected));
    upgrade(&mut caller, None).unwrap();
    assert_eq!(std::io::Read::read(&mut rude, &mut [0; 16]).unwrap(), 0, "it is sent away");
    let mut next = Guest::start(&io.socket("rude"), &Setup::default()).unwrap();
    assert_eq!(next.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    well.finish();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn the_program_asks_for_it() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let control = io.socket("control");
    let control = control.to_str().unwrap();
    // Another program file, by a path relative to the caller.
    let copy = io.folder.path().join("other");
    testkit::process::copy_program(Path::new(IO), &copy).unwrap();
    let run = |options: &[&str]| {
        let mut command = std::process::Command::new(IO);
        command.args(["upgrade", "--control", control]).args(options);
        command.current_dir(io.folder.path()).output().unwrap()
    };
    let output = run(&["--binary", "other"]);
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains(" took over 1 disks; pause "), "{stdout}");
    let pid = io.caller().stats().pid;
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), copy);
    // This file is the program from now on, also after a crash.
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    let next = io.process.next_worker(Some(worker.id())).unwrap();
    assert_eq!(io.caller().stats().pid, next.id());
    assert_eq!(std::fs::read_link(format!("/proc/{}/exe", next.id())).unwrap(), copy);
    // No upgrade starts while a disk is being restored.
    eventually("it is back", || io.caller().state("d") == Some(DiskState::Active));
    let mut stderr = String::new();
    eventually("what brought it back has ended", || {
        let output = run(&["--binary", "missing"]);
        assert_eq!(output.status.code(), Some(1));
        stderr = String::from_utf8(output.stderr).unwrap();
        !stderr.contains("try again when it has ended")
    });
    assert!(stderr.contains("continues to serve") && stderr.contains("/missing"), "{stderr}");
    // If its file is gone, the keeper uses its own program.
    std::fs::remove_file(&copy).unwrap();
    next.kill().unwrap();
    let stats = io.caller().stats();
    assert_eq!(std::fs::read_link(format!("/proc/{}/exe", stats.pid)).unwrap(), Path::new(IO));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
