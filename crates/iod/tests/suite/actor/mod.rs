//! Test programs in place of a new worker.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg};
use serde_json::{Value, json};

use crate::common::*;

/// Writes a test program that runs in place of the new worker. Returns its path.
pub fn script(io: &Io, text: &str) -> String {
    let path = io.folder.path().join("successor");
    testkit::process::write_script(&path, text).unwrap();
    path.to_str().unwrap().into()
}

/// Makes this test binary the new worker, which plays the `part` (`actor`). Returns the path of its
/// script.
pub fn play(io: &Io, part: &str) -> String {
    let this = std::env::current_exe().unwrap();
    let play = format!("exec {} --exact --ignored actor::part", this.display());
    script(io, &format!("export RINGWAY_TEST_PART={part}\n{play}"))
}

/// Plays the part that [`play`] has set, if any. Not a test itself.
#[test]
#[ignore = "plays a worker for other tests"]
fn part() {
    let Some(part) = std::env::var_os("RINGWAY_TEST_PART") else { return };
    let part = part.into_string().unwrap();
    // A destination that takes over NICs, or does not support them.
    let (nics, part) = match part.strip_prefix("nics ") {
        Some(part) => (true, part.to_owned()),
        None => (false, part),
    };
    let link = std::io::stdin();
    let way = loop {
        let (record, mut fds) = hear(link.as_fd());
        if record.contains("take_over") {
            break fds.remove(0);
        }
    };
    let say = |what: Value| {
        rustix::net::send(&way, what.to_string().as_bytes(), SendFlags::NOSIGNAL).unwrap();
    };
    greet(&part, nics, say);
    match part.as_str() {
        "dies" => return,
        "hangs" => stall(),
        "refuses" => say(json!({"refused": {"why": "not today"}})),
        "babbles" => say(json!({"ready": "steady"})),
        // Sleeps until its storage answers, even after a kill.
        "sleeps" => std::fs::write(std::env::var_os("RINGWAY_TEST_PATH").unwrap(), "x").unwrap(),
        _ => {}
    }
    let mut record = Value::Null;
    loop {
        let (message, fds) = hear(way.as_fd());
        if message.contains("end") {
            break;
        }
        if message.contains("disk") {
            record = read(fds.into_iter().next().unwrap());
        }
    }
    if part.starts_with("tells") {
        say(json!({"refused": {"why": format!("format {}", record["version"])}}));
    }
    if part == "starves" {
        let giver = rustix::net::sockopt::socket_peercred(&way).unwrap().pid;
        limit_open_files(giver.as_raw_nonzero().get() as u32, 3);
        say(json!({"refused": {"why": "let it starve"}}));
    }
    if part == "dies late" {
        // Nothing can be sent to it any more, as to a dead process.
        rustix::net::shutdown(&way, rustix::net::Shutdown::Read).unwrap();
    }
    if ["dies late", "goes", "stalls"].contains(&part.as_str()) {
        say(json!("ready"));
    }
    if part == "goes" || part == "stalls" {
        // It receives `Go`, and does not serve.
        assert!(hear(way.as_fd()).0.contains("go"));
    }
    if part == "stalls" {
        stall();
    }
}

/// Sends the first message, with the formats that it reads.
fn greet(part: &str, nics: bool, say: impl Fn(Value)) {
    let formats = |oldest: u32, newest: u32| json!({"oldest": oldest, "newest": newest});
    let hello = |oldest: u32, newest: u32| {
        let mut hello = json!({"pid": 1, "version": "0", "oldest": oldest, "newest": newest});
        if nics {
            hello["nics"] = formats(1, 1);
        }
        hello
    };
    let with = |what: &str, oldest: u32, newest: u32| {
        let mut hello = hello(1, 99);
        hello[what] = formats(oldest, newest);
        hello
    };
    let hello = match part {
        "future" => hello(98, 99),
        "past" => hello(0, 0),
        "future disks" => with("disks", 98, 99),
        "future nics" => with("nics", 98, 99),
        "tells novel" => with("disks", 1, 99),
        "odd" => return say(json!({"what": 1})),
        "eager" => return say(json!("ready")),
        _ => hello(1, 99),
    };
    say(json!({"hello": hello}));
}

fn stall() -> ! {
    loop {
        std::thread::park();
    }
}

/// Reads the record of a disk.
fn read(from: OwnedFd) -> Value {
    let mut file = std::fs::File::from(from);
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn hear(from: BorrowedFd<'_>) -> (String, Vec<OwnedFd>) {
    let mut bytes = vec![0; 1 << 20];
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [std::io::IoSliceMut::new(&mut bytes)];
    let got = recvmsg(from, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    assert!(got.bytes > 0, "the other side is gone");
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let fds = fds.flatten().collect();
    bytes.truncate(got.bytes);
    (String::from_utf8(bytes).unwrap(), fds)
}
