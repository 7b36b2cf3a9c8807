//! Tests of `ringway run` with real QEMU, real datapath and the test guest.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use crate::common::{Running, World, guest, wait_for_end};
use rustix::process::{Pid, Signal};

/// Start of the kernel's first line: the machine runs, and will for some seconds.
const KERNEL_RUNS: &str = "Linux version";

#[test]
fn a_guest_uses_its_disks_and_powers_off() {
    let world = World::new();
    let data = world.image("data.raw", 16 << 20);
    let script = "
        d=$(disk data) && printf 'written by the guest' | dd of=$d conv=fsync 2>/dev/null
        m=$(disk mem) && head -c 4096 $m | tr -d '\\0' | wc -c
        echo queues $(ls /sys/block/${d#/dev/}/mq | wc -l)
        echo address $(readlink -f /sys/block/${d#/dev/}/device/.. | sed 's,.*/,,')";
    let (status, console, stderr) = Running::start(
        world
            .run(script)
            .arg("--stats")
            .args(["--disk", &format!("{},serial=data,queues=2", data.display())])
            .args(["--disk", "memory:32M,serial=mem"]),
    )
    .finish();
    assert_eq!(status.code(), Some(0), "{console}\n{stderr}");
    assert!(console.contains("queues 2"), "{console}");
    assert!(console.contains("address 0000:00:04.0"), "{console}");
    assert!(console.contains("ringway-guest: exit 0"), "{console}");
    assert!(std::fs::read(&data).unwrap().starts_with(b"written by the guest"));
    assert!(stderr.contains("accelerator tcg"), "{stderr}");
    for cell in ["data.raw", "memory", "p99 us"] {
        assert!(stderr.contains(cell), "{cell} is not in {stderr}");
    }
    world.assert_clean();
}

#[test]
fn keys_reach_the_guest_and_a_closed_input_does_not_end_it() {
    let world = World::new();
    let script = "echo type now; read -r line </dev/console; echo got [$line]; sleep 1; echo ok";
    let mut running = Running::start(world.run(script).stdin(std::process::Stdio::piped()));
    running.wait_for("type now");
    running.type_and_close("some words\n");
    let (status, console, stderr) = running.finish();
    assert_eq!(status.code(), Some(0), "{console}\n{stderr}");
    assert!(console.contains("got [some words]") && console.contains("ok"), "{console}");
    world.assert_clean();
}

#[test]
fn ctrl_c_ends_everything() {
    let world = World::new();
    let mut running = Running::start(world.run("sleep 1000").args(["--disk", "null:1G"]));
    running.wait_for(KERNEL_RUNS);
    assert!(world.processes().len() >= 2, "{:?}", world.processes());
    running.signal(Signal::INT);
    let (status, console, stderr) = running.finish();
    assert_eq!(status.code(), Some(130), "{console}\n{stderr}");
    world.assert_clean();
}

#[test]
fn the_time_limit_ends_everything() {
    let world = World::new();
    let (kernel, initrd) = crate::common::guest();
    let mut command = world.ringway();
    command.args(["run", "--accel", "tcg", "--disk", "null:1G", "--timeout", "3s"]);
    command.arg("--kernel").arg(kernel).arg("--initrd").arg(initrd);
    let (status, console, stderr) = Running::start(&mut command).finish();
    assert_eq!(status.code(), Some(124), "{console}\n{stderr}");
    assert!(stderr.contains("time limit"), "{stderr}");
    world.assert_clean();
}

#[test]
fn a_dead_datapath_ends_the_machine_and_is_told() {
    let world = World::new();
    let mut running = Running::start(world.run("sleep 1000").args(["--disk", "null:1G"]));
    running.wait_for(KERNEL_RUNS);
    rustix::process::kill_process(world.process("ringway-io"), Signal::KILL).unwrap();
    let (status, console, stderr) = running.finish();
    assert_eq!(status.code(), Some(1), "{console}\n{stderr}");
    assert!(stderr.contains("ringway-io died (signal: 9"), "{stderr}");
    assert!(world.processes().is_empty(), "{:?}", world.processes());
    world.assert_clean();
}

#[test]
fn a_dead_worker_is_a_pause_for_the_guest() {
    let world = World::new();
    let data = world.image("data.raw", 8 << 20);
    let script = "d=$(disk data); for n in $(seq 12); do
        seq $n 90000 | head -c 262144 >want; dd if=want of=$d bs=64k oflag=direct 2>/dev/null
        dd if=$d bs=64k count=4 iflag=direct 2>/dev/null | cmp - want || exit 1
        echo round $n; done";
    let mut command = world.run(script);
    command.args(["--stats", "--disk", &format!("{},serial=data", data.display())]);
    let mut running = Running::start(&mut command);
    running.wait_for("round 3\r\n");
    let keeper = world.process("ringway-io").as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let worker = Pid::from_raw(children.unwrap().trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(worker, Signal::KILL).unwrap();
    let (status, console, stderr) = running.finish();
    assert_eq!(status.code(), Some(0), "{console}\n{stderr}");
    // Sum of both workers: at least the eight requests of each round.
    assert!(stderr.contains("disk0 (data.raw)"), "{stderr}");
    world.assert_clean();
}

#[test]
fn a_dead_qemu_ends_the_datapath_and_is_told() {
    let world = World::new();
    let mut running = Running::start(world.run("sleep 1000").args(["--disk", "null:1G"]));
    running.wait_for(KERNEL_RUNS);
    rustix::process::kill_process(world.process("qemu-system-x86_64"), Signal::KILL).unwrap();
    let (status, console, stderr) = running.finish();
    assert_eq!(status.code(), Some(1), "{console}\n{stderr}");
    assert!(stderr.contains("QEMU ended by itself (signal: 9"), "{stderr}");
    world.assert_clean();
}

#[test]
fn when_ringway_itself_is_killed_its_processes_die_with_it() {
    let world = World::new();
    let mut running = Running::start(world.run("sleep 1000").args(["--disk", "null:1G"]));
    running.wait_for(KERNEL_RUNS);
    let children = [world.process("ringway-io"), world.process("qemu-system-x86_64")];
    running.signal(Signal::KILL);
    children.into_iter().for_each(wait_for_end);
    running.finish();
    // Its sockets stay until the next run.
    let mut next = world.ringway();
    next.args(["run", "--accel", "tcg", "--timeout", "1ms", "--kernel"]).arg(guest().0);
    let (status, ..) = Running::start(&mut next).finish();
    assert_eq!(status.code(), Some(124));
    world.assert_clean();
}

#[test]
fn a_reset_is_not_taken_for_a_success() {
    let world = World::new();
    let mut command = world.run("reboot -f");
    let (status, console, stderr) = Running::start(&mut command).finish();
    assert_eq!(status.code(), Some(1), "{console}\n{stderr}");
    assert!(stderr.contains("instead of powering off"), "{stderr}");
    world.assert_clean();
}

#[test]
fn a_guest_goes_on_when_nobody_reads_its_console() {
    let world = World::new();
    let data = world.image("data.raw", 1 << 20);
    let script = "seq 1 20000; d=$(disk data) && echo done | dd of=$d conv=fsync";
    let mut command = world.run(script);
    command.args(["--disk", &format!("{},serial=data", data.display())]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(std::fs::read(&data).unwrap().starts_with(b"done"));
    world.assert_clean();
}

#[test]
fn what_cannot_be_served_is_told_and_nothing_is_left() {
    let world = World::new();
    let cases = [
        (vec!["--disk".to_owned(), "/nonexistent/a.raw".into()], "/nonexistent/a.raw"),
        (vec!["--disk".into(), "/tmp".into()], "disk 1 (/tmp)"),
        (vec!["--initrd".into(), "/nonexistent/initrd".into()], "/nonexistent/initrd"),
    ];
    for (arguments, expected) in cases {
        let (kernel, _) = crate::common::guest();
        let mut command = world.ringway();
        command.args(["run", "--accel", "tcg", "--timeout", "60s", "--kernel"]).arg(kernel);
        command.args(&arguments);
        let (status, _, stderr) = Running::start(&mut command).finish();
        assert_eq!(status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected), "{expected} is not in {stderr}");
        world.assert_clean();
    }
}

#[test]
fn a_kernel_that_is_none_is_told_in_the_words_of_qemu() {
    let world = World::new();
    let kernel = world.image("kernel", 0);
    let mut command = world.ringway();
    command.args(["run", "--accel", "tcg", "--timeout", "60s", "--kernel"]).arg(kernel);
    let (status, _, stderr) = Running::start(&mut command).finish();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("QEMU ended by itself") && stderr.contains("kernel"), "{stderr}");
    world.assert_clean();
}
