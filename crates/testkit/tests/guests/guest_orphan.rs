//! Guests of a killed test process end too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use testkit::raw::guest::wait_readable;

const DEADLINE: Duration = Duration::from_secs(180);

#[test]
fn a_killed_test_takes_its_guests_along() {
    let mut helper = Command::new(env!("CARGO_BIN_EXE_hold_guests"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines().map(Result::unwrap);
    let guests: Vec<_> = lines
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
