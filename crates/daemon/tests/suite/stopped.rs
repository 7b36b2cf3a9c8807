//! Programs that are stopped by a signal while they wait, as by Ctrl-Z, and go on.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use rustix::process::Signal;
use testkit::process::{PROCESS_DEADLINE, Process, eventually};
use testkit::ringwayd::Ringwayd;

/// Waits until the process is in this state (`proc_pid_stat(5)`).
fn until_state(process: &Process, state: char) {
    eventually("the state of the process", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with(state)
    });
}

#[test]
fn xe_goes_on_with_its_call() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    // It answers when it continues.
    daemon.process.signal(Signal::STOP).unwrap();
    let mut xe = Process::start(&mut daemon.xe(&["host-list"]).unwrap()).unwrap();
    for _ in 0..3 {
        until_state(&xe, 'S');
        xe.signal(Signal::STOP).unwrap();
        until_state(&xe, 'T');
        xe.signal(Signal::CONT).unwrap();
    }
    daemon.process.signal(Signal::CONT).unwrap();
    let status = xe.wait(PROCESS_DEADLINE).unwrap();
    assert!(status.success(), "{}", xe.stderr());
}
