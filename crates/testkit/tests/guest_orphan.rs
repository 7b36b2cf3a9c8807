//! Guests of a test process that is killed do not stay.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use testkit::guest::{Guest, Kind, Machine};
use testkit::raw::guest::wait_readable;

const DEADLINE: Duration = Duration::from_secs(180);
const MARK: &str = "guest of the helper:";

/// Not a test: the process that the test below kills. It ends by itself if it is run by mistake.
#[test]
#[ignore = "a helper that the other test starts"]
fn helper_holds_guests() {
    let start = |kind| Guest::start(kind, &Machine::default(), "echo up; sleep 1000").unwrap();
    // Started by a thread that ends before them: their parent is the process, not the thread.
    let guests = std::thread::spawn(move || [Kind::Uml, Kind::Qemu].map(start)).join().unwrap();
    for mut guest in guests {
        guest.wait_for("up\n", DEADLINE).unwrap();
        println!("{MARK} {} {}", guest.id(), guest.dir().display());
        std::mem::forget(guest);
    }
    std::io::stdin().lines().count();
}

#[test]
fn a_killed_test_takes_its_guests_along() {
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["helper_holds_guests", "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines().map(Result::unwrap);
    let of_guests = lines.filter_map(|line| Some(line.split_once(MARK)?.1.trim().to_owned()));
    let guests: Vec<_> = of_guests
        .take(2)
        .map(|line| {
            let (id, dir) = line.split_once(' ').unwrap();
            let id = Pid::from_raw(id.parse().unwrap()).unwrap();
            (pidfd_open(id, PidfdFlags::empty()).unwrap(), dir.to_owned())
        })
        .collect();
    helper.kill().unwrap();
    helper.wait().unwrap();
    assert_eq!(guests.len(), 2, "the helper ended early");
    for (guest, dir) in guests {
        // A killed process cannot remove its files.
        std::fs::remove_dir_all(dir).unwrap();
        assert_eq!(wait_readable(&[guest.as_fd()], DEADLINE).unwrap(), Some(0));
    }
}
