//! A VM with the most disks that it can have.

use std::collections::BTreeSet;

use testkit::rounds;

use super::records::{of, start};
use super::world::{PATIENCE, World};

/// More than the 32 disks that have interrupt vectors of their own. Soak runs use the maximum.
const DISKS: usize = 34;
const DISKS_MOST: usize = 255;

#[test]
fn a_guest_sees_every_disk_by_its_serial() {
    let mut world = World::new();
    let machine = world.guest("many");
    let disks = rounds(DISKS, DISKS_MOST);
    let mut devices = vec![(machine.slot.clone(), machine.disk.clone())];
    devices.resize_with(disks, || world.device(&machine.reference));
    let serial = |world: &mut World, (slot, disk): &(String, String)| {
        let number: u16 = world.record("VBD", slot).text("userdevice").parse().unwrap();
        let volume = world.record("VDI", disk).text("uuid").replace('-', "");
        format!("vbd{number:03}-{}", &volume[20..])
    };
    let expected: BTreeSet<_> = devices.iter().map(|device| serial(&mut world, device)).collect();
    assert_eq!(expected.len(), disks);

    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    let count = format!("until [ $(ls -d /sys/block/vd* | wc -l) = {disks} ]; do sleep 0.2; done");
    shell.run(&count, PATIENCE).unwrap();
    let seen =
        shell.run("for s in /sys/block/vd*/serial; do cat $s; echo; done", PATIENCE).unwrap();
    let seen: Vec<_> = seen.split_whitespace().map(str::to_owned).collect();
    assert_eq!(seen.len(), disks);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);

    world.call("VM.hard_shutdown", &of(&machine.reference));
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}
