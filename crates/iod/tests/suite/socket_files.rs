//! Files of live sockets that another program removes.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::nbd::{client, read};
use crate::common::*;
use rustix::process::Signal;
use serde_json::json;
use testkit::process::{PROCESS_DEADLINE, Process, eventually};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

const SIZE: u64 = 4 << 20;

fn lock_of(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Removes the socket's file, the lock file beside it, or both, and waits until they are back.
fn remove(socket: &Path, round: usize) {
    let both = [socket.to_owned(), lock_of(socket)];
    let removed = [&both[..1], &both[1..], &both[..]][round % 3];
    removed.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    eventually("the files are back", || both.iter().all(|path| path.exists()));
}

fn work(guest: &mut ReconnectingGuest) {
    assert_eq!(guest.run(Instant::now() + Duration::from_millis(50)).unwrap(), End::Time);
}

/// Connects a front-end to a disk. Removes the files of its socket several times, and kills the
/// worker after each time: the front-end finds its bytes.
fn survives(process: &mut Process, socket: &Path) {
    let shape = Shape { queues: 1, depth: 8, seed: 1, ..Shape::default() };
    let mut guest = ReconnectingGuest::connect(socket, shape).unwrap();
    work(&mut guest);
    for round in 0..3 {
        remove(socket, round);
        work(&mut guest);
        let worker = process.worker().unwrap().unwrap();
        worker.kill().unwrap();
        assert_eq!(guest.run(Instant::now() + PROCESS_DEADLINE).unwrap(), End::Closed);
        guest.reconnect().unwrap();
        work(&mut guest);
        process.next_worker(Some(worker.id())).unwrap();
    }
    guest.finish().unwrap();
}

#[test]
fn the_socket_of_a_disk_comes_back_and_its_front_end_survives_a_crash() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", SIZE);
    let mut spec = io.spec("d", json!({"file": path}));
    spec["socket_mode"] = json!(0o640);
    caller.disk("disk.attach", spec);
    let socket = io.socket("d");
    survives(&mut io.process, &socket);
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    let told = io.process.stderr();
    let lines = told.lines().filter(|line| line.contains("file was removed while"));
    assert!(lines.clone().count() >= 1, "{told}");
    assert!(lines.clone().all(|line| line.contains(socket.to_str().unwrap())), "{told}");
    // After an upgrade, too, and nothing is left in the end.
    io.caller().call("upgrade", json!({})).unwrap();
    remove(&socket, 2);
    io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
    assert_eq!(names(&io.folder), ["a.raw", "control", "control.lock"]);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn a_keeper_of_one_disk_puts_its_socket_back() {
    let folder = folder();
    let (socket, file) = (folder.path().join("s"), image(&folder, "a.raw", SIZE));
    let mut process = blk(&socket, &["--supervise", "--blk-file", &file]);
    survives(&mut process, &socket);
    assert!(process.terminate().unwrap().success(), "{}", process.stderr());
    assert_eq!(names(&folder), ["a.raw"]);
}

#[test]
fn every_other_socket_comes_back_too() {
    let folder = folder();
    let metrics = folder.path().join("metrics");
    let mut io = Io::start_with(&["--metrics", &format!("unix:{}", metrics.display())]);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": SIZE})));
    let export = json!({"id": "d", "socket": io.socket("nbd"), "read_only": true});
    caller.call("disk.export", export).unwrap();
    let nic = json!({"id": "n", "socket": io.socket("n"), "network": "lan",
        "mac": "02:00:00:00:00:01"});
    caller.call("nic.attach", nic).unwrap();
    let mut early = client(&io.socket("nbd"));
    let all = ["control", "d", "n", "nbd"].map(|name| io.socket(name));
    for round in 0..2 {
        all.iter().chain([&metrics]).for_each(|socket| remove(socket, 2 * round));
        // Old connections go on, and new ones are served: by this worker and by the next one.
        assert_eq!(caller.stats().disks.len(), 1);
        assert_eq!(read(&mut early, 0), [0; 512]);
        for _ in 0..2 {
            let mut caller = io.caller();
            eventually("the disk is there", || caller.state("d").is_some());
            assert_eq!(read(&mut client(&io.socket("nbd")), 0), [0; 512]);
            let mut scrape = UnixStream::connect(&metrics).unwrap();
            scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut page = String::new();
            scrape.read_to_string(&mut page).unwrap();
            assert!(page.contains("ringway_"), "{page}");
            UnixStream::connect(io.socket("n")).unwrap();
            let worker = io.process.worker().unwrap().unwrap();
            worker.kill().unwrap();
            io.process.next_worker(Some(worker.id())).unwrap();
        }
        caller = io.caller();
        early = client(&io.socket("nbd"));
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!((names(&io.folder), names(&folder)), (Vec::new(), Vec::new()));
}

#[test]
fn files_that_are_removed_while_no_worker_runs_come_back_with_the_next_one() {
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": SIZE})));
    let socket = io.socket("d");
    let worker = io.process.worker().unwrap().unwrap();
    io.process.signal(Signal::STOP).unwrap();
    worker.kill().unwrap();
    std::fs::remove_file(&socket).unwrap();
    // What a worker leaves that died before the keeper had the new socket.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    io.process.signal(Signal::CONT).unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    eventually("the socket is served", || UnixStream::connect(&socket).is_ok());
    survives(&mut io.process, &socket);
}

#[test]
fn without_its_folder_a_socket_waits_until_the_folder_returns() {
    let mut io = Io::start();
    let below = io.folder.path().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    let socket = below.join("d");
    let mut spec = io.spec("d", json!({"memory": SIZE}));
    spec["socket"] = json!(socket);
    io.caller().disk("disk.attach", spec);
    for round in 1..3 {
        // Move it first: a file may come back while its folder is being removed.
        std::fs::rename(io.socket("a"), io.socket("gone")).unwrap();
        std::fs::remove_dir_all(io.socket("gone")).unwrap();
        eventually("it says so", || {
            let log = io.process.stderr();
            log.lines().any(|line| line.contains("cannot be put back") && line.contains("a/b/d"))
        });
        assert_eq!(names(&io.folder), ["control", "control.lock"], "{round}");
        std::fs::create_dir(io.socket("a")).unwrap();
        std::fs::create_dir(&below).unwrap();
        eventually("the socket is back", || socket.exists());
    }
    survives(&mut io.process, &socket);
}

#[test]
fn a_path_that_another_file_takes_is_left_alone_until_it_is_free() {
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": SIZE})));
    let socket = io.socket("d");
    std::fs::write(io.socket("other"), "mine").unwrap();
    std::fs::rename(io.socket("other"), &socket).unwrap();
    std::fs::remove_file(lock_of(&socket)).unwrap();
    let told = |io: &mut Io| {
        let log = io.process.stderr();
        log.lines().filter(|line| line.contains("cannot be put back")).count()
    };
    eventually("it says so", || told(&mut io) > 0);
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "mine");
    std::fs::remove_file(&socket).unwrap();
    eventually("the socket is back", || socket.exists());
    assert_eq!(told(&mut io), 1, "it is told once");
    survives(&mut io.process, &socket);
}
