//! Sockets: in use, stale, too long, passed as descriptors, connected to; and the files left at the
//! end.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;
use rustix::process::Signal;
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Process};
use testkit::raw::request::{Request, status};
use testkit::raw::wire::{Message, Request as Code};
use testkit::raw::{Connection, Frontend, Guest, Setup, SharedMemory};

const NULL: [&str; 2] = ["--null", "1M"];

fn guest(socket: &Path) -> Guest {
    Guest::start(socket, &Setup::default()).unwrap()
}

fn works(guest: &mut Guest) {
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
}

#[test]
fn a_taken_socket_is_refused_and_a_stale_one_replaced() {
    let folder = folder();
    let socket = folder.path().join("s");
    let text = socket.to_str().unwrap();
    let mut first = blk(&socket, &NULL);
    let (code, stderr) = ends(BLK, &["--socket-path", text, "--null", "1M"]);
    assert!(code == 1 && stderr.contains("running process"), "{stderr}");
    works(&mut guest(&socket));
    // A killed process leaves its files, which do not block its successor.
    first.kill().unwrap();
    assert_eq!(names(&folder), ["s", "s.lock"]);
    let mut second = blk(&socket, &NULL);
    works(&mut guest(&socket));
    assert!(second.terminate().unwrap().success());
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_path_that_is_too_long_is_refused() {
    let folder = folder();
    let path = folder.path().join("x".repeat(108));
    let (code, stderr) = ends(BLK, &["--socket-path", path.to_str().unwrap(), "--null", "1M"]);
    assert!(code == 2 && stderr.contains("107") && stderr.contains("shorter"), "{stderr}");
    let (code, stderr) = ends(IO, &["--control", path.to_str().unwrap()]);
    assert!(code == 2 && stderr.contains("107") && stderr.contains("shorter"), "{stderr}");
}

#[test]
fn either_signal_ends_it_cleanly_with_or_without_a_front_end() {
    for signal in [Signal::TERM, Signal::INT] {
        for connected in [false, true] {
            let folder = folder();
            let socket = folder.path().join("s");
            let mut process = blk(&socket, &NULL);
            let guest = connected.then(|| guest(&socket));
            process.signal(signal).unwrap();
            let status = process.wait(PROCESS_DEADLINE).unwrap();
            assert_eq!(status.code(), Some(0), "{}", process.stderr());
            assert_eq!(names(&folder), [""; 0]);
            if let Some(mut guest) = guest {
                guest.frontend.connection.wait_closed().unwrap();
            }
        }
    }
}

#[test]
fn permissions_are_set_before_anybody_can_connect() {
    let folder = folder();
    let socket = folder.path().join("s");
    let _process = blk(&socket, &[&NULL[..], &["--socket-mode", "640"]].concat());
    let mode = socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn a_second_front_end_waits_until_the_first_has_gone() {
    let folder = folder();
    let socket = folder.path().join("s");
    let _process = blk(&socket, &NULL);
    let mut first = guest(&socket);
    let mut second = Frontend::connect(&socket).unwrap();
    second.connection.set_deadline(Duration::from_millis(100)).unwrap();
    assert!(second.barrier().is_err(), "it is not served yet");
    works(&mut first);
    drop(first);
    // The front-end sent its first message before, and gets the reply now.
    second.connection.set_deadline(PROCESS_DEADLINE).unwrap();
    second.connection.recv("the answer to the first question").unwrap();
    let memory = SharedMemory::new(8 << 20).unwrap();
    works(&mut Guest::start_with(second, memory, &Setup::default()).unwrap());
}

#[test]
fn front_ends_come_and_go_and_leave_nothing() {
    let folder = folder();
    let socket = folder.path().join("s");
    let process = blk(&socket, &["--memory", "1M", "--num-queues", "4"]);
    let setup = Setup { queues: 4, ..Setup::default() };
    let visit = |round: u8| {
        let mut guest = Guest::start(&socket, &setup).unwrap();
        for queue in 0..4 {
            let write = Request::write(u64::from(round), &[round; 512]);
            assert_eq!(guest.run(queue, &write).unwrap().status, status::OK);
        }
        guest
    };
    let before = open_files(&process);
    drop(visit(0));
    eventually("as many open files as at first", || open_files(&process) == before);
    for round in 1..testkit::rounds(20, 250) as u8 {
        // Some front-ends disconnect in the middle of a message, some with requests in flight.
        let mut guest = visit(round);
        match round % 3 {
            0 => guest.frontend.connection.send_bytes(&[1, 0, 0, 0, 1], &[]).unwrap(),
            1 => {
                guest.submit(0, &Request::read(0, 4096)).unwrap();
                guest.kick(0).unwrap();
            }
            _ => {}
        }
    }
    let mut last = visit(20);
    assert_eq!(last.run(0, &Request::read(19, 512)).unwrap().data, [19; 512]);
    drop(last);
    eventually("as many open files as at first", || open_files(&process) == before);
    // Their memory is not mapped any more either.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.id())).unwrap();
    assert!(!maps.contains("testkit-guest-memory"), "{maps}");
}

#[test]
fn an_inherited_socket_is_served_until_its_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(BLK);
    // Standard input is a descriptor that a child inherits.
    command
        .args(["--fd", "0", "--null", "1M"])
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    drop(command);
    let connection = Connection::from_stream(ours).unwrap();
    let frontend = Frontend { connection, acks: false };
    let memory = SharedMemory::new(8 << 20).unwrap();
    let mut guest = Guest::start_with(frontend, memory, &Setup::default()).unwrap();
    works(&mut guest);
    drop(guest);
    assert!(child.wait().unwrap().success());
}

#[test]
fn an_inherited_descriptor_must_be_a_connected_socket() {
    for fd in ["0", "1000"] {
        let (code, stderr) = ends(BLK, &["--fd", fd, "--null", "1M"]);
        assert!(code == 1 && stderr.contains("--fd"), "{stderr}");
    }
}

#[test]
fn we_connect_where_the_front_end_listens_and_come_back() {
    let folder = folder();
    let socket = folder.path().join("s");
    let mut process = blk(&socket, &[&NULL[..], &["--connect"]].concat());
    let listener = UnixListener::bind(&socket).unwrap();
    for _ in 0..2 {
        let (stream, _) = listener.accept().unwrap();
        let connection = Connection::from_stream(stream).unwrap();
        let frontend = Frontend { connection, acks: false };
        let memory = SharedMemory::new(8 << 20).unwrap();
        works(&mut Guest::start_with(frontend, memory, &Setup::default()).unwrap());
    }
    drop(listener);
    assert!(process.terminate().unwrap().success());
    // The front-end removes the socket.
    assert_eq!(names(&folder), ["s"]);
}

#[test]
fn a_path_that_is_no_socket_is_no_front_end() {
    let folder = folder();
    let file = image(&folder, "precious", 1);
    let (code, stderr) = ends(BLK, &["--connect", "--socket-path", &file, "--null", "1M"]);
    assert_eq!(code, 1, "{stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    assert!(last.contains(&file) && last.contains("not a socket"), "{stderr}");
    assert_eq!(stderr.matches("not a socket").count(), 1, "{stderr}");
    assert_eq!(names(&folder), ["precious"]);
}

#[test]
fn a_front_end_does_not_choose_how_much_is_logged() {
    let folder = folder();
    let socket = folder.path().join("s");
    let mut process = blk(&socket, &NULL);
    for _session in 0..2 {
        let mut frontend = Frontend::connect(&socket).unwrap();
        for _ in 0..1000 {
            frontend.send(Message::new(Code::SET_FEATURES).u64(u64::MAX)).unwrap();
            frontend.send(Message::new(Code(99))).unwrap();
        }
        frontend.barrier().unwrap();
    }
    assert!(process.terminate().unwrap().success());
    let stderr = process.stderr();
    assert_eq!(stderr.matches("refused").count(), 1, "{stderr}");
}

#[test]
fn hostile_front_ends_end_only_their_own_session() {
    use testkit::raw::hostile::{Hostile, HostileOutcome};
    let folder = folder();
    let socket = folder.path().join("s");
    let process = blk(&socket, &NULL);
    for bad in Hostile::ALL {
        let mut frontend = Frontend::connect(&socket).unwrap();
        let hostile_outcome =
            bad.send(&mut frontend).unwrap_or_else(|error| panic!("{bad:?}: {error}"));
        assert_eq!(
            hostile_outcome == HostileOutcome::Closed,
            bad.breaks_framing(),
            "{bad:?}: {hostile_outcome:?}"
        );
        drop(frontend);
        works(&mut guest(&socket));
    }
    assert!(process.is_running().unwrap());
}

#[test]
fn a_write_to_a_dying_reader_of_ready_is_reported() {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    drop(reader);
    let folder = folder();
    let mut command = Command::new(BLK);
    command.arg("--socket-path").arg(folder.path().join("s")).args(NULL);
    command.args(["--ready-fd", "1"]).stdout(Stdio::from(writer));
    let mut process = Process::start(&mut command).unwrap();
    let status = process.wait(PROCESS_DEADLINE).unwrap();
    assert!(status.code() == Some(1) && process.stderr().contains("--ready-fd"));
    assert_eq!(names(&folder), [""; 0]);
}
