//! VMs that wait for their place among those that boot.

use std::fs;

use testkit::cpus::{BusyThreads, mine};
use xenapi::Value;

use super::records::{start, with};
use super::world::{Machine, PATIENCE, World};

/// Returns what `ringway why` says of a VM; `None` if the command fails.
fn why(world: &World, name: &str) -> Option<String> {
    let output = world.ringway(&["why", &format!("vm={name}"), "--seconds", "0.1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}

/// Keeps each CPU of the host busy. `None` if this test may not use all of them.
fn busy_host() -> Option<BusyThreads> {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let is_cpu = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    let (all, mine) = (stat.lines().filter(is_cpu).count(), mine().unwrap());
    (mine.len() == all).then(|| BusyThreads::start(&mine, 1).unwrap())
}

/// The first machine has no agent, so it keeps the only place for a minute. The CPUs are kept busy,
/// since idle ones let the second machine boot beside it.
#[test]
fn a_machine_that_waits_for_its_place_says_so() {
    let mut world = World::new();
    let [first, second]: [Machine; 2] = ["first", "second"].map(|name| world.plain(name));
    let host = world.client.records("host").unwrap().remove(0).0;
    world.call("host.add_to_other_config", &with(&host, ["boots", "1"].map(Value::text)));

    let Some(busy) = busy_host() else { return };
    world.call("VM.start", &start(&first.reference));
    let waiting = world.client.begin("VM.start", &start(&second.reference)).unwrap();
    let words = "second starts: it waits for its place among the VMs that boot, for ";
    world.until("the wait", |world| why(world, "second").is_some_and(|why| why.starts_with(words)));
    assert_eq!(world.power(&second), "Halted");
    assert!(why(&world, "first").unwrap().contains("it waits for the agent of its guest"));

    // An idle CPU lets it boot.
    drop(busy);
    world.client.end(waiting, PATIENCE).unwrap();
    assert_eq!(world.power(&second), "Running");
    let why = why(&world, "second").unwrap();
    assert!(why.contains("it waits for the agent of its guest"), "{why}");
    assert!(why.contains(" for its place, "), "{why}");
}
