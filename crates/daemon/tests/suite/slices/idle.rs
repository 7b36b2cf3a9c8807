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

/// While control is idle, a guest gets as much CPU as a process beside the slices, although control
/// has ten times its weight. Once control is busy, the guest gets little. The processes of a turn
/// compete for one CPU, so that others, which use it too, take from all of them. The bounds leave
/// room around the expected 1 and 1/11.
#[test]
fn control_takes_nothing_when_it_is_idle() {
    let Some((_daemon, slices)) = simulator() else { return };
    let cpu = *mine().unwrap().first().unwrap();
    let (guest, outside) = (hog(cpu), hog(cpu));
    slices.put("guests/11111111-2222-4333-8444-555555555555", guest.id()).unwrap();
    slices.take_out(outside.id()).unwrap();
    let (mut with, mut without, mut beside, mut control) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..testkit::rounds(5, 25) {
        let [one, other] = turn([&guest, &outside]);
        (with, without) = (with + one, without + other);
        let busy = hog(cpu);
        slices.put("control/clients", busy.id()).unwrap();
        let [one, other] = turn([&guest, &busy]);
        (beside, control) = (beside + one, control + other);
    }
    assert!(with > 0.5 * without, "{with} s in a slice, {without} s outside");
    assert!(beside < 0.3 * (beside + control), "{beside} s, {control} s of a busy control slice");
}
