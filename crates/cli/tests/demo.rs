//! `ringway demo` as a newcomer runs it.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod common;

use common::{Running, World, guest};

#[test]
fn the_demo_passes_and_leaves_nothing() {
    let world = World::new();
    let images = world.dir("images");
    let (kernel, _) = guest();
    let mut command = world.ringway();
    command.args(["demo", "--accel", "tcg", "--guest"]).arg(kernel.parent().unwrap());
    command.arg("--dir").arg(&images);
    let (status, output, stderr) = Running::start(&mut command).finish();
    assert_eq!(status.code(), Some(0), "{output}\n{stderr}");
    for name in ["data (", "multi (", "mem (", "golden (", "p99 us", "ringway doctor"] {
        assert!(output.contains(name), "{name} is not in {output}");
    }
    assert_eq!(output.lines().filter(|line| line.starts_with("ok ")).count(), 6, "{output}");
    assert!(stderr.contains("guest: golden") && stderr.contains("kill -9"), "{stderr}");
    assert_eq!(std::fs::read_dir(&images).unwrap().count(), 0);
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
