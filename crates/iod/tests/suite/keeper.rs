//! Workers that die, and the reaction of their keeper.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::sectors::{connect, read, write};
use crate::common::*;
use model::report::DiskState;
use model::rpc::{Response, code};
use rustix::process::Signal;
use serde_json::json;
use testkit::process::PROCESS_DEADLINE;
use testkit::process::eventually;
use testkit::raw::request::Request;
use testkit::storage::Hanging;

#[test]
fn a_killed_worker_is_replaced_and_every_disk_is_as_it_was() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", 1 << 20);
    let file = json!({"file": path});
    for (id, backend) in
        [("file", file), ("memory", json!({"memory": 1 << 20})), ("null", json!({"null": 4096}))]
    {
        let mut spec = io.spec(id, backend);
        spec["cache"] = json!("writeback");
        caller.disk("disk.attach", spec);
    }
    let mut idle = io.spec("idle", json!({"memory": 4096}));
    idle["activate"] = json!(false);
    caller.disk("disk.attach", idle);
    caller.disk("disk.pause", json!({"id": "null"}));
    caller.disk("disk.resize", json!({"id": "memory", "size": 2 << 20}));
    caller.disk("disk.attach", io.spec("gone", json!({"null": 4096})));
    caller.call("disk.detach", json!({"id": "gone"})).unwrap();
    write(&mut connect(&io.socket("file")), 7, 1);
    write(&mut connect(&io.socket("memory")), 4000, 2);
    let before = names(&io.folder);

    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    let next = io.process.next_worker(Some(worker.id())).unwrap();
    // A front-end that connects now waits until the disk is restored.
    assert_eq!(read(&mut connect(&io.socket("file")), 7), 1);
    assert_eq!(read(&mut connect(&io.socket("memory")), 4000), 2);
    let mut caller = io.caller();
    let stats = caller.stats();
    assert_eq!(stats.pid, next.id());
    let keeper = stats.keeper.unwrap();
    assert_eq!((keeper.pid, keeper.restarts), (io.process.id(), 1));
    assert_eq!(keeper.last_exit.unwrap(), "was killed by SIGKILL");
    let expected = [DiskState::Active, DiskState::Attached, DiskState::Active, DiskState::Paused];
    eventually("each is as it was", || {
        expected == ["file", "idle", "memory", "null"].map(|id| caller.state(id).unwrap())
    });
    assert_eq!(stats.disks.len(), 4);
    assert_eq!(names(&io.folder), before);

    caller.call("disk.detach", json!({"id": "file"})).unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn a_keeper_whose_starter_ignores_its_children_does_its_work() {
    let mut io = Io::through(&["env", "--ignore-signal=CHLD"], &[]);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    write(&mut connect(&io.socket("d")), 7, 1);
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    assert_eq!(read(&mut connect(&io.socket("d")), 7), 1);
    io.caller().call("upgrade", serde_json::Value::Null).unwrap();
    assert_eq!(read(&mut connect(&io.socket("d")), 7), 1);
    // The keeper sleeps as before: it has forgotten the retired worker.
    let ticks = |io: &mut Io| {
        let stat = format!("/proc/{}/stat", io.process.id());
        let text = std::fs::read_to_string(stat).unwrap();
        let fields: Vec<_> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks(&mut io);
    std::thread::sleep(Duration::from_secs(1));
    assert!(ticks(&mut io) - before < 50, "the keeper spins");
    io.process.signal(Signal::TERM).unwrap();
    assert!(io.process.wait(PROCESS_DEADLINE).is_ok());
}

#[test]
fn workers_are_replaced_as_often_as_they_die() {
    let mut io = Io::start_with(&["--restart-pause-max", "0"]);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    write(&mut connect(&io.socket("d")), 0, 9);
    let rounds = testkit::rounds(20, 500);
    let mut last = None;
    for _ in 0..rounds {
        let worker = io.process.next_worker(last).unwrap();
        last = Some(worker.id());
        worker.kill().unwrap();
    }
    assert_eq!(read(&mut connect(&io.socket("d")), 0), 9);
    let keeper = io.caller().stats().keeper.unwrap();
    assert_eq!(keeper.restarts, rounds as u64);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

/// Kills a worker and calls `change` on the images before the next worker opens them.
fn changed_meanwhile(images: &[&str], change: impl FnOnce(&Io)) -> (Io, Caller) {
    let mut io = Io::start();
    let mut caller = io.caller();
    for name in images {
        let path = image(&io.folder, &format!("{name}.raw"), 1 << 20);
        let mut spec = io.spec(name, json!({"file": path}));
        spec["cache"] = json!("writeback");
        caller.disk("disk.attach", spec);
        write(&mut connect(&io.socket(name)), 7, 1);
    }
    let worker = io.process.worker().unwrap().unwrap();
    // Stop the keeper, so that no worker starts before the images are changed.
    io.process.signal(Signal::STOP).unwrap();
    worker.kill().unwrap();
    change(&io);
    io.process.signal(Signal::CONT).unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let mut caller = io.caller();
    eventually("every disk is there or refused", || {
        let disks = caller.stats().disks;
        disks.iter().all(|disk| match &disk.refused {
            Some(reason) => !reason.contains("being restored"),
            None => disk.state == DiskState::Active,
        })
    });
    (io, caller)
}

fn reason(caller: &mut Caller, id: &str) -> Option<String> {
    caller.stats().disks.into_iter().find(|disk| disk.id == id).unwrap().refused
}

#[test]
fn an_image_that_is_not_what_it_was_is_refused_and_its_guest_waits() {
    let names_of = ["good", "gone", "replaced", "shrunk"];
    let (mut io, mut caller) = changed_meanwhile(&names_of, |io| {
        let path = |name: &str| io.folder.path().join(format!("{name}.raw"));
        std::fs::rename(path("gone"), path("away")).unwrap();
        std::fs::rename(path("replaced"), path("old")).unwrap();
        std::fs::File::create(path("replaced")).unwrap().set_len(1 << 20).unwrap();
        let shrunk = std::fs::File::options().write(true).open(path("shrunk")).unwrap();
        shrunk.set_len(1 << 19).unwrap();
    });
    let path = |io: &Io, name: &str| io.folder.path().join(format!("{name}.raw"));
    for (id, text) in [
        ("gone", "No such file"),
        ("replaced", "is another file than the one that was attached"),
        ("shrunk", "has 524288 bytes, and guests were told 1048576"),
    ] {
        assert_eq!(caller.state(id), Some(DiskState::Refused));
        let reason = reason(&mut caller, id).unwrap();
        assert!(reason.contains(text), "{reason}");
        let error = caller.call("disk.activate", json!({"id": id})).unwrap_err();
        assert!(error.message.contains(text), "{error}");
        let error = caller.call("disk.resize", json!({"id": id})).unwrap_err();
        assert!(error.message.contains("is refused, see `stats`"), "{error}");
        let error = caller.call("disk.attach", io.spec(id, json!({"null": 512}))).unwrap_err();
        assert!(error.message.contains("attached already"), "{error}");
    }
    assert_eq!(reason(&mut caller, "good"), None);
    assert_eq!(read(&mut connect(&io.socket("good")), 7), 1);

    // A guest that connects waits until the image is back.
    let socket = io.socket("replaced");
    let waiting = std::thread::spawn(move || read(&mut connect(&socket), 7));
    std::fs::rename(path(&io, "old"), path(&io, "replaced")).unwrap();
    caller.disk("disk.activate", json!({"id": "replaced"}));
    assert_eq!(waiting.join().unwrap(), 1);
    std::fs::rename(path(&io, "away"), path(&io, "gone")).unwrap();
    // The next worker still has the refused disk, and serves it if its image is back.
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    assert_eq!(read(&mut connect(&io.socket("gone")), 7), 1);
    let mut caller = io.caller();
    eventually("it is refused again", || {
        reason(&mut caller, "shrunk").is_some_and(|reason| reason.contains("guests were told"))
    });
    // The reason is visible a moment before the verb has ended.
    eventually("detached", || caller.call("disk.detach", json!({"id": "shrunk"})).is_ok());
    assert!(!io.socket("shrunk").exists());
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert!(names(&io.folder).iter().all(|name| name.ends_with(".raw")));
}

#[test]
fn what_an_image_has_grown_by_meanwhile_is_not_shown_before_a_resize() {
    let (io, mut caller) = changed_meanwhile(&["grown"], |io| {
        let path = io.folder.path().join("grown.raw");
        // The size is no multiple of the block size, as while a program still grows the image.
        std::fs::File::options().write(true).open(path).unwrap().set_len((1 << 20) + 100).unwrap();
    });
    assert_eq!(reason(&mut caller, "grown"), None);
    let bytes = |caller: &mut Caller| caller.stats().disks[0].geometry.size_bytes;
    assert_eq!(bytes(&mut caller), 1 << 20);
    assert_eq!(read(&mut connect(&io.socket("grown")), 7), 1);
    caller.disk("disk.resize", json!({"id": "grown", "size": 2 << 20}));
    assert_eq!(bytes(&mut caller), 2 << 20);
}

#[test]
fn a_null_disk_keeps_its_size() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("null", json!({"null": 4096})));
    caller.disk("disk.resize", json!({"id": "null", "size": 8192}));
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let mut caller = io.caller();
    eventually("the disk is there", || caller.state("null") == Some(DiskState::Active));
    assert_eq!(caller.stats().disks[0].geometry.size_bytes, 8192);
}

#[test]
fn a_detach_that_a_worker_died_in_is_ended_with_a_flush() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", 1 << 20).unwrap();
    let mut io = Io::start();
    let mut caller = io.caller();
    let mut spec = io.spec("d", json!({"file": path}));
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let mut guest = connect(&io.socket("d"));
    write(&mut guest, 7, 1);
    hanging.hang().unwrap();
    guest.submit_all(0, &[Request::write(8, &[2; 512])]).unwrap();
    guest.kick(0).unwrap();
    let mut detaching = io.caller();
    let detach = std::thread::spawn(move || detaching.call("disk.detach", json!({"id": "d"})));
    let busy = |caller: &mut Caller| {
        let error = caller.call("disk.activate", json!({"id": "d"})).err();
        error.is_some_and(|error| error.message.contains("being detached"))
    };
    eventually("the detach hangs", || busy(&mut caller));
    // The front-end is disconnected after the keeper has recorded the detach, not before.
    guest.frontend.connection.wait_closed().unwrap();
    let worker = io.process.worker().unwrap().unwrap();
    // The worker ends when its storage has answered.
    worker.signal(Signal::KILL).unwrap();
    hanging.answer().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    // The caller got no reply.
    assert!(detach.join().is_err());
    let mut caller = io.caller();
    eventually("the disk is gone", || caller.stats().disks.is_empty());
    let logged = "detached: completed the detach of a former worker";
    eventually("it is told", || io.process.stderr().contains(logged));
    assert!(!io.process.stderr().contains("without a flush"), "{}", io.process.stderr());
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn no_worker_can_be_started_by_hand_and_a_second_process_is_refused() {
    let mut io = Io::start();
    let control = io.socket("control").to_str().unwrap().to_owned();
    let (code, stderr) = ends(IO, &["--control", &control, "--worker"]);
    assert!(code == 1 && stderr.contains("for the program's own use"), "{stderr}");
    assert!(io.process.is_running().unwrap());
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, 0);
    assert!(io.process.terminate().unwrap().success());
}

#[test]
fn a_worker_that_is_told_to_end_ends_everything_in_order() {
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    io.process.worker().unwrap().unwrap().signal(Signal::TERM).unwrap();
    let status = io.process.wait(PROCESS_DEADLINE).unwrap();
    assert!(status.success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

#[test]
fn a_signal_between_two_workers_leaves_nothing() {
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    let first = io.process.worker().unwrap().unwrap();
    first.kill().unwrap();
    let second = io.process.next_worker(Some(first.id())).unwrap();
    eventually("it serves", || io.caller().state("d") == Some(DiskState::Active));
    // When it continues, the stopped keeper sees the end of its worker and the signal together.
    io.process.signal(Signal::STOP).unwrap();
    second.kill().unwrap();
    io.process.signal(Signal::TERM).unwrap();
    io.process.signal(Signal::CONT).unwrap();
    io.process.wait(PROCESS_DEADLINE).unwrap();
    assert_eq!(names(&io.folder), [""; 0]);
}

/// Last reply to a caller about a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    There,
    Gone,
    /// The worker died before it replied.
    Either,
}

/// Attaches and detaches disks until `stop` is set, reconnecting when necessary.
fn toggle(io: &Io, caller: u64, stop: &AtomicBool) -> BTreeMap<String, Known> {
    let mut known = BTreeMap::new();
    let mut turn = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let Ok(stream) = UnixStream::connect(io.socket("control")) else { continue };
        let mut reader = BufReader::new(stream);
        loop {
            let id = format!("{caller}-{}", turn % 5);
            let there = known.get(&id) == Some(&Known::There);
            let (method, params) = match there {
                true => ("disk.detach", json!({"id": id})),
                false => ("disk.attach", io.spec(&id, json!({"memory": 4096}))),
            };
            let before = known.insert(id.clone(), Known::Either).unwrap_or(Known::Gone);
            let call = json!({"jsonrpc": "2.0", "id": turn, "method": method, "params": params});
            let sent = reader.get_mut().write_all(format!("{call}\n").as_bytes());
            let mut line = String::new();
            if sent.is_err() || !matches!(reader.read_line(&mut line), Ok(1..)) {
                break;
            }
            turn += 1;
            let answer: Response = serde_json::from_str(&line).unwrap();
            let now = match answer.error {
                None if there => Known::Gone,
                None => Known::There,
                // The interrupted call had succeeded, or the disk is just being detached.
                Some(error) if error.message.contains("attached already") => Known::Either,
                Some(error) if error.code == code::NO_SUCH_DISK => Known::Gone,
                // Nothing was done, so the state is unchanged.
                Some(error) if error.message.contains("try again") => before,
                Some(error) => panic!("{method} {id}: {error}"),
            };
            known.insert(id, now);
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    known
}

#[test]
fn an_answered_verb_is_never_forgotten_and_none_is_half_done() {
    let mut io = Io::start_with(&["--restart-pause-max", "0"]);
    for _ in 0..testkit::rounds(4, 50) {
        let stop = AtomicBool::new(false);
        let mut last = None;
        let io_ref = &io;
        let workers: Vec<_> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..3)
                .map(|caller| {
                    scope.spawn({
                        let stop = &stop;
                        move || toggle(io_ref, caller, stop)
                    })
                })
                .collect();
            let ended = Ended(&stop);
            for round in 0..8 {
                // Kill it at an arbitrary moment of its work.
                std::thread::sleep(Duration::from_micros(3000 + 1700 * round));
                if let Some(worker) = io_ref.process.worker().unwrap()
                    && Some(worker.id()) != last
                {
                    last = Some(worker.id());
                    let _ = worker.kill();
                }
            }
            drop(ended);
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        io.process.next_worker(last).unwrap();
        let mut caller = io.caller();
        let listed = |caller: &mut Caller| -> Vec<_> {
            caller.stats().disks.into_iter().map(|disk| disk.id).collect()
        };
        // A disk that was being detached disappears by itself.
        eventually("all is at rest", || {
            let settled = listed(&mut caller).iter().all(|id| io.socket(id).exists());
            settled && caller.stats().disks.iter().all(|disk| disk.state == DiskState::Active)
        });
        let there = listed(&mut caller);
        for (id, known) in workers.into_iter().flatten() {
            let (is_there, socket) = (there.contains(&id), io.socket(&id).exists());
            assert!(known != Known::There || is_there, "{id} was attached");
            assert!(known != Known::Gone || !is_there, "{id} was detached");
            if is_there {
                assert!(socket);
                eventually("detached", || caller.call("disk.detach", json!({"id": id})).is_ok());
            }
        }
        assert_eq!(listed(&mut caller), [""; 0]);
    }
}

#[test]
fn a_worker_that_cannot_begin_takes_nothing_with_it() {
    let open_files = |io: &mut Io| {
        let worker = io.process.worker().unwrap().unwrap();
        std::fs::read_dir(format!("/proc/{}/fd", worker.id())).unwrap().count() as u64
    };
    let enough = open_files(&mut Io::start_with(&["--reactors", "4"]));
    let mut failed = 0;
    // Each round allows one descriptor more than the one before, and fails where that is missing.
    for limit in (enough - 10..=enough).rev() {
        let mut io = Io::start_with(&["--reactors", "4"]);
        let mut caller = io.caller();
        caller.call("stats", json!({})).unwrap();
        // A thread writes the log, and dies with the worker.
        eventually("the first one serves", || io.process.stderr().contains("taking calls"));
        let first = io.process.worker().unwrap().unwrap();
        cap_open_files(io.process.id(), limit);
        first.kill().unwrap();
        eventually("another one serves, or has ended too", || {
            let stderr = io.process.stderr();
            stderr.matches("taking calls").count() > 1 || stderr.matches("; restarting").count() > 1
        });
        failed += usize::from(io.process.stderr().contains("Too many open files"));
        assert!(io.socket("control").exists(), "{limit}: {}", io.process.stderr());
        io.process.signal(Signal::TERM).unwrap();
        io.process.wait(PROCESS_DEADLINE).unwrap();
        assert_eq!(names(&io.folder), [""; 0]);
    }
    assert!(failed > 2, "{failed}");
}

#[test]
fn a_worker_that_does_not_end_is_killed() {
    let mut io = Io::start();
    let mut spec = io.spec("d", json!({"memory": 4096}));
    spec["stop_deadline_ms"] = json!(500);
    io.caller().disk("disk.attach", spec);
    io.process.worker().unwrap().unwrap().signal(Signal::STOP).unwrap();
    assert!(!io.process.terminate().unwrap().success());
    let stderr = io.process.stderr();
    assert!(stderr.contains("it did not stop in time"), "{stderr}");
    assert_eq!(names(&io.folder), [""; 0]);
}
