//! A wall clock that is set while guests run.

use testkit::clock::WallClock;

use super::records::{of, start};
use super::world::{PATIENCE, World};

const DAY_S: i64 = 86_400;
/// Longer than a test takes, in seconds.
const NEAR_S: i64 = 1800;

/// A guest's own reboot does not halt the VM, whatever the clock. A daemon that starts with another
/// time finds the VM unchanged.
#[test]
fn a_clock_that_is_set_ends_no_machine() {
    let clock = WallClock::new().unwrap();
    let mut world = World::at(&clock);
    let machine = world.guest("timeless");
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    machine.write(&mut shell, 3, "kept");

    for days in [4000, -4000] {
        clock.set(days * DAY_S).unwrap();
        let before = world.domid(&machine);
        shell.last("reboot", PATIENCE).unwrap();
        world.until_again(&machine, before);
        shell = world.shell(&machine);
        assert_eq!(machine.read(&mut shell, 3), "kept");
        let metrics = world.record("VM", &machine.reference).text("metrics").to_owned();
        let started = world.record("VM_metrics", &metrics).date("start_time").0;
        let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        assert!((started - now - days * DAY_S).abs() < NEAR_S, "{started}, {days} days off");
    }
    assert_eq!(world.messages(&machine), ["VM_REBOOTED"; 2]);

    for days in [0, -4000] {
        let before = world.domid(&machine);
        world.daemon.process.kill().unwrap();
        clock.set(days * DAY_S).unwrap();
        world.daemon.start_again().unwrap();
        world.client = world.daemon.client().unwrap();
        assert_eq!((world.power(&machine).as_str(), world.domid(&machine)), ("Running", before));
        assert_eq!(shell.run("echo here", PATIENCE).unwrap(), "here");
    }
    world.call("VM.hard_shutdown", &of(&machine.reference));
    assert_eq!(machine.stored(3), "kept");
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}
