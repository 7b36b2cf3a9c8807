//! Disks that are plugged and unplugged while a guest runs.

use model::report::DiskState;
use testkit::ringwayd::Shell;

use super::records::of;
use super::world::{DISK_BYTES, Machine, PATIENCE, World};

/// Device directory of the plugged disk in the guest.
const SEEN: &str = "/sys/block/vdb";

/// Another disk comes and goes.
pub(super) fn disks_come_and_go(world: &mut World, machine: &Machine, shell: &mut Shell) {
    let second = second(world, machine);
    is_out(world, shell, &second);
    let of_slot = format!("uuid={}", world.record("VBD", &second.slot).text("uuid"));
    for (turn, verb) in ["vbd-unplug", "vbd-unplug --force", "vbd-unplug"].into_iter().enumerate() {
        let word = |turn: usize| format!("word{turn}");
        world.daemon.xe_prints(&["vbd-plug", &of_slot]).unwrap();
        is_in(world, shell, &second);
        if let Some(before) = turn.checked_sub(1) {
            let read = "dd if=/dev/vdb bs=512 skip=7 count=1 2>/dev/null | tr -d '\\0'";
            assert_eq!(shell.run(read, PATIENCE).unwrap(), word(before));
        }
        let write = "dd of=/dev/vdb bs=512 seek=7 conv=notrunc,fsync 2>/dev/null";
        shell.run(&format!("echo {} | {write}", word(turn)), PATIENCE).unwrap();
        let words: Vec<_> = verb.split(' ').chain([&*of_slot]).collect();
        world.daemon.xe_prints(&words).unwrap();
        is_out(world, shell, &second);
        assert_eq!(second.stored(7), word(turn));
        // The other disk is served all the time.
        machine.write(shell, 7, &word(turn));
        assert_eq!(machine.stored(7), word(turn));
    }
    world.call("VBD.destroy", &of(&second.slot));
    world.call("VDI.destroy", &of(&second.disk));
    assert!(!second.image.exists());
}

/// Returns another disk of the VM that is not plugged.
fn second(world: &mut World, machine: &Machine) -> Machine {
    let (slot, disk) = world.device(&machine.reference);
    let image = world.image(&disk);
    let (reference, uuid) = (machine.reference.clone(), machine.uuid.clone());
    Machine { reference, uuid, slot, disk, image }
}

/// Asserts that the disk is plugged, in the guest and in all reports.
fn is_in(world: &mut World, shell: &mut Shell, second: &Machine) {
    let (record, volume) = (world.record("VBD", &second.slot), world.record("VDI", &second.disk));
    assert!(record.flag("currently_attached"));
    assert_eq!(record.text("device"), "vdb");
    let disk = world.served(&second.slot).unwrap();
    assert!(disk.state == DiskState::Active && disk.connected && disk.locked, "{disk:?}");
    shell.run("until [ -b /dev/vdb ]; do sleep 0.1; done", PATIENCE).unwrap();
    let serial = shell.run(&format!("cat {SEEN}/serial; echo; cat {SEEN}/size"), PATIENCE).unwrap();
    let volume = volume.text("uuid").replace('-', "");
    let number: u8 = record.text("userdevice").parse().unwrap();
    let expected = format!("vbd{number:03}-{}\n{}", &volume[20..], DISK_BYTES / 512);
    assert_eq!(serial.replace("\n\n", "\n"), expected);
}

/// Asserts that only the image of the disk remains.
fn is_out(world: &mut World, shell: &mut Shell, second: &Machine) {
    let record = world.record("VBD", &second.slot);
    assert!(!record.flag("currently_attached"));
    assert_eq!(record.text("device"), "");
    assert!(world.served(&second.slot).is_none());
    shell.run(&format!("[ ! -e {SEEN} ]"), PATIENCE).unwrap();
}
