//! Logs that cannot be written, that nobody reads, and that others try to flood.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::common::*;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::json;
use tempfile::TempDir;
use testkit::process::{PROCESS_DEADLINE, Process, eventually};
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Starts `ringway-io` with its standard error in this file, which must exist.
fn logging_to(folder: TempDir, log: &str) -> Io {
    let script = format!("exec \"$@\" 2>>{log}");
    Io::through_in(folder, &["sh", "-c", &script, "sh"], &["--restart-pause-max", "0"])
}

/// Creates a pipe and opens it for reading and writing, without waiting.
fn pipe(folder: &TempDir) -> (String, File) {
    let path = folder.path().join("log");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    (path.to_str().unwrap().into(), file)
}

/// A guest breaks its ring, and the reactor logs that.
fn break_ring(io: &Io) {
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    guest.queues[0].ring.set_avail_idx(&guest.memory, 10_000).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, PROCESS_DEADLINE).unwrap(), WaitEvent::QueueError);
}

/// Does work that is logged by keeper, worker and reactors. Everything is answered, a guest keeps
/// its bytes when the worker dies, and the end is orderly.
fn serves_as_ever(mut io: Io) {
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let setup = Setup::default();
    let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
    let write = |guest: &mut Guest, byte| guest.run(0, &Request::write(1, &[byte; 512])).unwrap();
    assert_eq!(write(&mut guest, 7).status, status::OK);
    caller.disk("disk.pause", json!({"id": "d"}));
    caller.disk("disk.resume", json!({"id": "d"}));
    for _ in 0..3 {
        let worker = io.process.worker().unwrap().unwrap();
        worker.kill().unwrap();
        io.process.next_worker(Some(worker.id())).unwrap();
        let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
        assert_eq!(guest.run(0, &Request::read(1, 512)).unwrap().data, [7; 512]);
    }
    let mut caller = io.caller();
    assert_eq!(caller.stats().keeper.unwrap().restarts, 3);
    break_ring(&io);
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    assert!(io.process.terminate().unwrap().success());
}

#[test]
fn a_log_on_a_full_file_system_ends_nothing() {
    serves_as_ever(logging_to(folder(), "/dev/full"));
}

#[test]
fn a_log_whose_reader_has_ended_ends_nothing() {
    let folder = folder();
    let (path, reader) = pipe(&folder);
    let io = logging_to(folder, &path);
    drop(reader);
    serves_as_ever(io);
}

#[test]
fn a_log_whose_reader_pauses_stops_nothing() {
    let folder = folder();
    let (path, mut reader) = pipe(&folder);
    let io = logging_to(folder, &path);
    let mut filled = 0;
    while let Ok(written) = reader.write(&[b'x'; 4096]) {
        filled += written;
    }
    assert!(filled >= 4096, "the pipe is full");
    serves_as_ever(io);
}

/// `ringway-blk ... 2>&1 | head -1`, then a front-end connects.
#[test]
fn a_program_whose_log_was_cut_off_serves() {
    let folder = folder();
    let socket = folder.path().join("s");
    let script = "\"$@\" 2>&1 | head -1 >/dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", BLK, "--memory", "1M", "--socket-path"]).arg(&socket);
    // The end of the group ends the program, too.
    let mut shell = Process::start(command.stdout(Stdio::null())).unwrap();
    eventually("it listens", || UnixStream::connect(&socket).is_ok());
    let children = format!("/proc/{0}/task/{0}/children", shell.id());
    let children = || std::fs::read_to_string(&children).unwrap();
    eventually("`head` has ended", || children().split_whitespace().count() == 1);
    for byte in 0..3 {
        let mut guest = Guest::start(&socket, &Setup::default()).unwrap();
        let done = guest.run(0, &Request::write(1, &[byte; 512])).unwrap();
        assert_eq!(done.status, status::OK);
    }
    let program = shell.worker().unwrap().unwrap();
    program.signal(rustix::process::Signal::TERM).unwrap();
    assert!(shell.wait(PROCESS_DEADLINE).unwrap().success());
}

#[test]
fn a_front_end_cannot_flood_the_log() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    for _ in 0..200 {
        break_ring(&io);
    }
    assert!(io.process.terminate().unwrap().success());
    let log = io.process.stderr();
    let broken = log.lines().filter(|line| line.contains("broke the ring")).count();
    let connected = log.lines().filter(|line| line.contains("front-end connected")).count();
    assert_eq!((broken, connected), (1, 1), "{log}");
}

#[test]
fn a_log_file_has_a_limit() {
    let folder = folder();
    let path = folder.path().join("log");
    let script =
        format!("RINGWAY_LOG=debug RINGWAY_LOG_LIMIT=4000 exec \"$@\" 2>>{}", path.display());
    let mut io = Io::through_in(folder, &["sh", "-c", &script, "sh"], &[]);
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    for _ in 0..200 {
        drop(Guest::start(&io.socket("d"), &Setup::default()).unwrap());
    }
    assert!(io.process.terminate().unwrap().success());
    let log = std::fs::read_to_string(path).unwrap();
    assert!((1000..=4000).contains(&log.len()), "{} bytes: {log}", log.len());
    assert!(log.trim_end().ends_with("ended"), "the newest lines stay: {log}");
}
