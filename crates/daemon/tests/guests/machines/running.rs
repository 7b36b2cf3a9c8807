//! Changes around a running guest. They share one boot, because none changes what the next one
//! needs.

use testkit::ringwayd::Shell;

use super::devices::devices_change;
use super::knobs::xe_sets_a_disk;
use super::plugs::disks_come_and_go;
use super::records::{of, start};
use super::world::{Machine, World};

#[test]
fn a_running_guest_sees_changes_and_outlives_its_daemon() {
    let mut world = World::new();
    let machine = world.guest("running");
    machine.calibrate();
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    xe_sets_a_disk(&mut world, &machine, &mut shell);
    disks_come_and_go(&mut world, &machine, &mut shell);
    devices_change(&mut world, &machine, &mut shell);
    daemon_ends_in_order(&mut world, &machine, &mut shell);

    world.call("VM.clean_shutdown", &of(&machine.reference));
    assert_eq!(world.power(&machine), "Halted");
    assert_eq!(machine.stored(4), "meanwhile");
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    assert_eq!(world.messages(&machine), Vec::<String>::new());
}

/// As in an update of the daemon's package.
fn daemon_ends_in_order(world: &mut World, machine: &Machine, shell: &mut Shell) {
    let domid = world.domid(machine);
    world.daemon.stop().unwrap();
    machine.write(shell, 4, "meanwhile");
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    world.assert_runs_on(machine, domid);
    assert_eq!(machine.read(shell, 4), "meanwhile");
}
