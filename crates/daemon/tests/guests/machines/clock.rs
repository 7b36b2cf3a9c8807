//! A wall clock that is set while guests run.

use testkit::clock::WallClock;

use super::records::{of, start};
use super::world::World;

const DAY_S: i64 = 86_400;
/// Longer than a test takes, in seconds.
const NEAR_S: i64 = 1800;

/// A guest's own reboot does not halt the VM, whatever the clock. A daemon that starts with another
/// time finds the VM unchanged.
#[test]
fn a_clock_that_is_set_ends_no_machine() {
    let clock = WallClock::new().unwrap();
    let mut world = World::at(&clock);
    let machine = world.sector_guest("timeless");
    world.call("VM.start", &start(&machine.reference));
    let mut guest = world.sector_line(&machine);
    guest.write(3, b'k').unwrap();

    for days in [4000, -4000] {
        clock.set(days * DAY_S).unwrap();
        let before = world.domid(&machine);
        guest.reboot().unwrap();
        world.until_again(&machine, before);
        guest = world.sector_line(&machine);
        assert_eq!(guest.read(3).unwrap(), b'k');
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
        assert_eq!(guest.read(3).unwrap(), b'k');
    }
    world.call("VM.hard_shutdown", &of(&machine.reference));
    assert_eq!(machine.stored(3), "k");
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}
