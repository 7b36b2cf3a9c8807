//! `ringway-blk --supervise`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::*;
use rustix::process::Signal;
use testkit::process::PROCESS_DEADLINE;
use testkit::process::eventually;
use testkit::raw::guest::wait_readable;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

fn write(socket: &Path, value: u8) {
    let mut guest = Guest::start(socket, &Setup::default()).unwrap();
    let done = guest.run(0, &Request::write(0, &[value; 512])).unwrap();
    assert_eq!(done.status, status::OK);
}

fn read(socket: &Path) -> u8 {
    let mut guest = Guest::start(socket, &Setup::default()).unwrap();
    guest.run(0, &Request::read(0, 512)).unwrap().data[0]
}

#[test]
fn a_killed_worker_is_a_pause() {
    let folder = folder();
    let socket = folder.path().join("s");
    let file = image(&folder, "a.raw", 1 << 20);
    for disk in [["--memory", "1M"], ["--blk-file", &file]] {
        let mut process = blk(&socket, &[&disk[..], &["--supervise"]].concat());
        for value in 1..=testkit::rounds(3, 50) as u8 {
            write(&socket, value);
            let worker = process.next_worker(None).unwrap();
            worker.kill().unwrap();
            assert_eq!(read(&socket), value, "it waited in the backlog");
        }
        assert!(process.terminate().unwrap().success(), "{}", process.stderr());
        assert_eq!(names(&folder), ["a.raw"]);
    }
}

#[test]
fn what_cannot_be_served_is_not_tried_for_ever() {
    let folder = folder();
    let socket = folder.path().join("s").to_str().unwrap().to_owned();
    let start =
        |file: &str| ends(BLK, &["--socket-path", &socket, "--supervise", "--blk-file", file]);
    let (code, stderr) = start("/no/such/image");
    assert!(code == 1 && stderr.contains("No such file"), "{stderr}");
    assert!(!stderr.contains("; restarting"), "{stderr}");
    let _other = blk(Path::new(&socket), &["--null", "1M"]);
    let (code, stderr) = start(&image(&folder, "a.raw", 1 << 20));
    assert!(code == 1 && stderr.contains("running process"), "{stderr}");
    let options = ["--fd", "0", "--supervise", "--null", "1M"];
    let (code, stderr) = ends(BLK, &options);
    assert!(code == 2 && stderr.contains("--supervise"), "{stderr}");
}

#[test]
fn an_image_that_is_replaced_meanwhile_is_tried_again() {
    let folder = folder();
    let socket = folder.path().join("s");
    let file = image(&folder, "a.raw", 1 << 20);
    let options = ["--supervise", "--restart-pause-max", "20", "--blk-file", &file];
    let mut process = blk(&socket, &options);
    write(&socket, 7);
    let worker = process.worker().unwrap().unwrap();
    process.signal(Signal::STOP).unwrap();
    worker.kill().unwrap();
    let away = folder.path().join("away");
    std::fs::rename(&file, &away).unwrap();
    std::fs::copy(&away, &file).unwrap();
    process.signal(Signal::CONT).unwrap();
    eventually("it says why", || process.stderr().contains("is another file than"));
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(read(&socket), 7, "waited in the backlog meanwhile");
    process.signal(Signal::INT).unwrap();
    assert!(process.wait(PROCESS_DEADLINE).unwrap().success(), "{}", process.stderr());
    assert_eq!(names(&folder), ["a.raw"]);
}

fn lasting(socket: &Path, seed: u64) -> ReconnectingGuest {
    let shape = Shape { queues: 1, depth: 8, seed, ..Shape::default() };
    let mut guest = ReconnectingGuest::connect(socket, shape).unwrap();
    work(&mut guest);
    guest
}

fn work(guest: &mut ReconnectingGuest) {
    assert_eq!(guest.run(Instant::now() + Duration::from_millis(50)).unwrap(), End::Time);
}

fn go_on(guest: &mut ReconnectingGuest) {
    assert_eq!(guest.run(Instant::now() + PROCESS_DEADLINE).unwrap(), End::Closed);
    guest.reconnect().unwrap();
    work(guest);
}

#[test]
fn a_worker_ends_with_its_keeper_and_both_are_started_again() {
    let folder = folder();
    let socket = folder.path().join("s");
    let file = image(&folder, "a.raw", 4 << 20);
    let options = ["--supervise", "--blk-file", &file];
    let mut process = blk(&socket, &options);
    let mut guest = lasting(&socket, 1);
    let worker = process.worker().unwrap().unwrap();
    process.kill().unwrap();
    let ended = wait_readable(&[worker.ended().as_fd()], PROCESS_DEADLINE).unwrap();
    assert!(ended.is_some(), "it serves on, and nobody keeps it");
    assert_eq!(names(&folder), ["a.raw"], "in order");
    let mut process = blk(&socket, &options);
    go_on(&mut guest);
    guest.finish().unwrap();
    assert!(process.terminate().unwrap().success(), "{}", process.stderr());
}

#[test]
fn the_worker_of_a_memory_disk_goes_on_for_its_bytes() {
    let folder = folder();
    let socket = folder.path().join("s");
    let mut process = blk(&socket, &["--supervise", "--memory", "4M"]);
    let mut guest = lasting(&socket, 2);
    let worker = process.worker().unwrap().unwrap();
    process.kill().unwrap();
    work(&mut guest);
    guest.finish().unwrap();
    worker.signal(Signal::TERM).unwrap();
    assert!(wait_readable(&[worker.ended().as_fd()], PROCESS_DEADLINE).unwrap().is_some());
    assert_eq!(names(&folder), [""; 0], "in order");
}

#[test]
fn an_upgrade_is_another_program_after_a_stop_or_a_kill() {
    let folder = folder();
    let socket = folder.path().join("s");
    let path = socket.to_str().unwrap();
    let program = folder.path().join("program");
    for supervise in [&[][..], &["--supervise"]] {
        let file = image(&folder, "a.raw", 4 << 20);
        let options = [&["--socket-path", path, "--blk-file", &file], supervise].concat();
        std::fs::copy(BLK, &program).unwrap();
        let mut process = ready(program.to_str().unwrap(), &options);
        let mut guest = lasting(&socket, 3);
        for round in 0..4 {
            let worker = process.worker().unwrap();
            // The program file is replaced as a package manager does it.
            let next = folder.path().join("next");
            std::fs::copy(BLK, &next).unwrap();
            std::fs::rename(&next, &program).unwrap();
            if round % 2 == 0 {
                assert!(process.terminate().unwrap().success(), "{}", process.stderr());
            } else {
                process.kill().unwrap();
            }
            if let Some(worker) = worker {
                wait_readable(&[worker.ended().as_fd()], PROCESS_DEADLINE).unwrap();
            }
            process = ready(program.to_str().unwrap(), &options);
            go_on(&mut guest);
        }
        guest.finish().unwrap();
        assert!(process.terminate().unwrap().success(), "{}", process.stderr());
    }
}
