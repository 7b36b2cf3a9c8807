//! Tests of `ringway demo`.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{Running, World, guest};
use rustix::process::Signal;

/// Returns a command of `ringway demo` with these words and the test guest, in `images`.
fn demo(world: &World, images: &Path, words: &[&str]) -> Command {
    let (kernel, _) = guest();
    let mut command = world.ringway();
    command.arg("demo").args(words).arg("--guest").arg(kernel.parent().unwrap());
    command.arg("--dir").arg(images);
    command
}

fn names(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns the rest of the line that begins with `start`.
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let mut lines = text.lines().filter_map(|line| line.trim_start().split_once(start));
    lines.next().unwrap_or_else(|| panic!("no {start:?} in {text}")).1
}

fn run(line: &str) -> Output {
    Command::new("bash").args(["-ec", line]).output().unwrap()
}

/// The demo passes. The kept machine can be used and stopped with the printed commands.
#[test]
fn the_demo_passes_and_what_it_keeps_is_stopped() {
    let world = World::new();
    let images = world.dir("images");
    let mut command = demo(&world, &images, &["--keep"]);
    let (status, output, stderr) = Running::start(&mut command).finish();
    assert_eq!(status.code(), Some(0), "{output}\n{stderr}");
    for name in ["data (", "multi (", "golden (", "late (", "p99 us"] {
        assert!(output.contains(name), "{name} is not in {output}");
    }
    assert_eq!(output.lines().filter(|line| line.starts_with("ok ")).count(), 7, "{output}");
    for message in ["guest: golden", "kill -9", "plugged another disk"] {
        assert!(stderr.contains(message), "{message} is not in {stderr}");
    }
    let xe = format!("{} -s", Path::new(crate::common::RINGWAY).with_file_name("xe").display());
    let listed = format!("{xe}{}", line(&output, &xe));
    let listed = run(&format!("{listed} name-label=demo params=power-state --minimal"));
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "running\n", "{listed:?}");
    let stop = format!("{} demo --stop", crate::common::RINGWAY);
    let stop = format!("{stop}{}", line(&output, &stop));
    let stopped = run(&format!("XDG_RUNTIME_DIR={} {stop}", world.dir("run").display()));
    assert!(stopped.status.success() && stopped.stderr.is_empty(), "{stopped:?}");
    assert_eq!(names(&images), [] as [PathBuf; 0]);
    world.assert_clean();
}

/// Ctrl-C in the middle of the demo.
#[test]
fn ctrl_c_leaves_nothing() {
    let world = World::new();
    let images = world.dir("images");
    // Progress goes to standard error, which this test reads instead of standard output.
    let demo = demo(&world, &images, &["--keep"]);
    let mut command = Command::new("bash");
    command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(demo.get_program()).args(demo.get_args());
    command.envs(demo.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(command.stdin(Stdio::null()));
    running.wait_for("guest: data");
    assert!(!world.processes().is_empty());
    running.signal(Signal::INT);
    let (status, output, _) = running.finish();
    assert_eq!(status.code(), Some(130), "{output}");
    assert!(output.contains("interrupted; the demo is ended"), "{output}");
    assert!(!output.contains("had to be killed"), "{output}");
    assert_eq!(names(&images), [] as [PathBuf; 0]);
    world.assert_clean();
}

#[test]
fn without_a_guest_it_says_how_to_build_one() {
    let world = World::new();
    let mut command = world.ringway();
    let (status, _, stderr) =
        Running::start(command.args(["demo", "--guest", "/nonexistent"])).finish();
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("make guest"), "{stderr}");
}

#[test]
fn what_was_never_kept_is_not_stopped() {
    let world = World::new();
    let dir = world.dir("other");
    let mut command = world.ringway();
    let (status, _, stderr) = Running::start(command.args(["demo", "--stop"]).arg(&dir)).finish();
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("is not the directory of a kept demo"), "{stderr}");
    assert!(dir.is_dir());
}
