//! An idle slice takes no CPU time from others.

use std::process::Command;
use std::time::Duration;

use testkit::cpus::{confine, mine};
use testkit::process::Process;

use super::simulator;

/// Duration of a measurement.
const TURN: Duration = Duration::from_millis(200);

/// Starts a process that computes for ever on one CPU.
fn hog(cpu: usize) -> Process {
    let hog = Process::start(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
    confine(hog.id(), &[cpu]).unwrap();
    hog
}

/// Returns the CPU time of a process so far, in seconds.
fn cpu_s(of: &Process) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/schedstat", of.id())).unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Returns the CPU time that two processes use during a measurement.
fn turn(of: [&Process; 2]) -> [f64; 2] {
    let before = of.map(cpu_s);
    std::thread::sleep(TURN);
    let after = of.map(cpu_s);
    [after[0] - before[0], after[1] - before[1]]
}

/// While control is idle, a guest gets as much CPU as without slices, although control has ten
/// times its weight. Once control is busy, the guest gets little. The bounds leave room around the
/// expected 1 and 1/11, because other processes use this CPU, too.
#[test]
fn control_takes_nothing_when_it_is_idle() {
    let Some((_daemon, slices)) = simulator() else { return };
    let cpu = *mine().unwrap().first().unwrap();
    let guest = hog(cpu);
    let group = "guests/11111111-2222-4333-8444-555555555555";
    let (mut without, mut with, mut beside, mut control) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..testkit::rounds(5, 25) {
        slices.take_out(guest.id()).unwrap();
        without += turn([&guest; 2])[0];
        slices.put(group, guest.id()).unwrap();
        with += turn([&guest; 2])[0];
        let busy = hog(cpu);
        slices.put("control/clients", busy.id()).unwrap();
        let [one, other] = turn([&guest, &busy]);
        (beside, control) = (beside + one, control + other);
    }
    assert!(with > 0.5 * without, "{with} s in a slice, {without} s without one");
    assert!(beside < 0.3 * (beside + control), "{beside} s, {control} s of a busy control slice");
}
