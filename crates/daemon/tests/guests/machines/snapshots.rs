//! Snapshots and clones of a machine while its guest writes.

use std::ffi::OsStr;
use std::path::Path;

use model::spec::Backend;
use rustix::process::{Pid, Signal, kill_process};
use testkit::ringwayd::Shell;
use xenapi::Value;

use super::records::{of, slot, start, with};
use super::world::{Machine, PATIENCE, World};

/// Block that tells which state a disk has.
const BLOCK: u64 = 7;

#[test]
fn a_guest_goes_on_after_snapshots_and_comes_back_to_them() {
    let mut world = World::new();
    let machine = world.guest("snapshots");
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    machine.write(&mut shell, BLOCK, "first");
    let first = snapshot(&mut world, &machine, "one");
    machine.write(&mut shell, BLOCK, "second");
    assert_eq!(machine.stored(BLOCK), "first");
    assert_eq!(layers(&mut world, &machine), 2);
    datapath_dies(&mut world, &machine, &mut shell, (BLOCK, "second"), 2);
    daemon_dies(&mut world, &machine, &mut shell);
    clone_is_plugged(&mut world, &machine, &first, &mut shell);
    disk_grows(&mut world, &machine, &mut shell);

    world.call("VM.revert", &of(&first));
    assert_eq!(world.power(&machine), "Halted");
    let before = world.record("VM", &first);
    assert_eq!(before.text("snapshot_of"), machine.reference);
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, BLOCK), "first");
    machine.write(&mut shell, BLOCK, "third");
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
    halted_disk_grows(&mut world, &machine);
    nothing_is_left(&mut world, &machine);
}

#[test]
fn a_disk_goes_back_at_each_boot_to_what_it_was() {
    let mut world = World::new();
    let machine = world.guest("resets");
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    machine.write(&mut shell, BLOCK, "golden");
    let disk = format!("uuid={}", disk_uuid(&mut world, &machine.disk));
    let on_boot = |world: &World, value: &str| {
        world.daemon.xe_output(&["vdi-param-set", &disk, &format!("on-boot={value}")]).unwrap()
    };
    let refused = on_boot(&world, "reset");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in use"), "{refused:?}");
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
    assert!(on_boot(&world, "reset").status.success());
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, BLOCK), "golden");
    machine.write(&mut shell, BLOCK, "first");
    drop(shell);
    // A guest keeps its writes while it runs, whatever dies.
    world.killed();
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, BLOCK), "first");
    drop(shell);
    world.call("VM.hard_reboot", &of(&machine.reference));
    let mut shell = world.shell(&machine);
    assert_eq!(machine.read(&mut shell, BLOCK), "golden", "a reboot is a boot");
    machine.write(&mut shell, BLOCK, "second");
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
    let folder = machine.image.parent().unwrap().read_dir().unwrap();
    let images = folder.filter(|one| !is_hidden(&one.as_ref().unwrap().file_name())).count();
    assert_eq!(images, 4, "two images and two records");
    assert!(on_boot(&world, "persist").status.success());
    let vm = with(&machine.reference, [Value::Bool(true), Value::Bool(false)]);
    world.call("VM.start", &vm);
    assert!(world.served(&machine.slot).unwrap().backend.files().count() == 2);
    world.call("VM.hard_shutdown", &of(&machine.reference));
    nothing_is_left(&mut world, &machine);
}

/// Takes a snapshot with `xe`. Returns its reference.
pub(super) fn snapshot(world: &mut World, machine: &Machine, name: &str) -> String {
    let (vm, name) = (format!("uuid={}", machine.uuid), format!("new-name-label={name}"));
    let uuid = world.daemon.xe_prints(&["vm-snapshot", &vm, &name]).unwrap();
    let made = world.made("VM.get_by_uuid", &of(&uuid));
    assert!(world.record("VM", &made).flag("is_a_snapshot"));
    made
}

/// Returns the number of images of the disk that the guest has.
pub(super) fn layers(world: &mut World, machine: &Machine) -> usize {
    let backend: Backend = world.served(&machine.slot).unwrap().backend;
    backend.files().count()
}

/// Kills keeper and worker of each datapath with disks.
pub(super) fn kill_datapath(world: &mut World) {
    for stats in world.datapaths().into_iter().filter(|stats| !stats.disks.is_empty()) {
        let keeper = stats.keeper.map(|keeper| keeper.pid);
        for pid in keeper.into_iter().chain([stats.pid]) {
            let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
            // The worker ends with its keeper.
            let _ended = kill_process(pid, Signal::KILL);
        }
    }
}

/// The next `ringway-io` serves the same `count` images, although keeper and worker died. A block has
/// this word.
pub(super) fn datapath_dies(
    world: &mut World,
    machine: &Machine,
    shell: &mut Shell,
    (block, word): (u64, &str),
    count: usize,
) {
    kill_datapath(world);
    machine.write(shell, BLOCK + 100, "later");
    let read = "echo 3 >/proc/sys/vm/drop_caches";
    shell.run(read, PATIENCE).unwrap();
    assert_eq!(machine.read(shell, block), word);
    assert_eq!(layers(world, machine), count);
}

/// The next daemon takes another snapshot.
fn daemon_dies(world: &mut World, machine: &Machine, shell: &mut Shell) {
    world.killed();
    let second = world.made("VDI.snapshot", &with(&machine.disk, [super::records::record([])]));
    machine.write(shell, BLOCK, "changed");
    assert_eq!(layers(world, machine), 3);
    let record = world.record("VDI", &second);
    assert!(record.flag("is_a_snapshot") && record.flag("read_only"));
    assert_eq!(record.text("snapshot_of"), machine.disk);
    world.call("VDI.destroy", &of(&second));
}

/// A disk in layers grows while the guest runs. The snapshot keeps its size.
fn disk_grows(world: &mut World, machine: &Machine, shell: &mut Shell) {
    let size = |world: &mut World| world.record("VDI", &machine.disk).int("virtual_size");
    let before = size(world);
    world.call("VDI.resize_online", &with(&machine.disk, [Value::Int(2 * before)]));
    assert_eq!(size(world), 2 * before);
    let sectors =
        format!("until [ $(cat /sys/block/vda/size) = {} ]; do sleep 0.1; done", before / 256);
    shell.run(&sectors, PATIENCE).unwrap();
    let last = u64::try_from(before / 256 - 1).unwrap();
    machine.write(shell, last, "end");
    assert_eq!(machine.read(shell, last), "end");
    assert_eq!(machine.read(shell, BLOCK), "changed");
}

/// A disk in layers grows while no machine has it.
fn halted_disk_grows(world: &mut World, machine: &Machine) {
    let (_, disk) = disks(world, &machine.reference).remove(0);
    let before = world.record("VDI", &disk).int("virtual_size");
    world.call("VDI.resize", &with(&disk, [Value::Int(2 * before)]));
    // A repeated call finds the size.
    world.call("VDI.resize", &with(&disk, [Value::Int(2 * before)]));
    assert_eq!(world.record("VDI", &disk).int("virtual_size"), 2 * before);
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(machine);
    assert_eq!(machine.read(&mut shell, BLOCK), "third");
    let size = shell.run("cat /sys/block/vda/size", PATIENCE).unwrap();
    assert_eq!(size.trim(), (before / 256).to_string());
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
}

/// The guest gets a clone of the snapshot's disk beside its own.
fn clone_is_plugged(world: &mut World, machine: &Machine, snapshot: &str, shell: &mut Shell) {
    let (_, disk) = disks(world, snapshot).remove(0);
    let clone = world.made("VDI.clone", &with(&disk, [super::records::record([])]));
    let device = world.made("VBD.create", &[slot(&machine.reference, Some(&clone))]);
    world.call("VBD.plug", &of(&device));
    shell.run("until [ -b /dev/vdb ]; do sleep 0.1; done", PATIENCE).unwrap();
    let read = format!("dd if=/dev/vdb bs=512 skip={BLOCK} count=1 2>/dev/null | tr -d '\\0'");
    assert_eq!(shell.run(&read, PATIENCE).unwrap(), "first");
    let write = format!("dd of=/dev/vdb bs=512 seek={BLOCK} conv=notrunc,fsync 2>/dev/null");
    shell.run(&format!("echo own | {write}"), PATIENCE).unwrap();
    assert_eq!(machine.read(shell, BLOCK), "changed");
    world.call("VBD.unplug", &of(&device));
    world.call("VBD.destroy", &of(&device));
    world.call("VDI.destroy", &of(&clone));
    // A copy is one image that shares nothing.
    let copy = disk_uuid(world, &disk);
    let copy = world.daemon.xe_prints(&["vdi-copy", &format!("uuid={copy}")]).unwrap();
    let copy = world.made("VDI.get_by_uuid", &of(&copy));
    let image = world.image(&copy);
    assert_eq!(Machine { image, ..machine.clone() }.stored(BLOCK), "first");
    assert!(!world.record("VDI", &copy).flag("read_only"));
}

fn disk_uuid(world: &mut World, disk: &str) -> String {
    world.record("VDI", disk).text("uuid").to_owned()
}

/// Returns the VBDs of a VM with their VDIs.
pub(super) fn disks(world: &mut World, machine: &str) -> Vec<(String, String)> {
    let slots = world.client.records("VBD").unwrap().into_iter();
    let slots = slots.filter(|(_, one)| one.text("VM") == machine && one.text("type") == "Disk");
    slots.map(|(slot, one)| (slot, one.text("VDI").to_owned())).collect()
}

fn is_hidden(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with('.')
}

/// The space of all images comes back.
pub(super) fn nothing_is_left(world: &mut World, machine: &Machine) {
    for (_, disk) in world.client.records("VDI").unwrap() {
        assert!(!disk.text("name_label").is_empty());
    }
    let all: Vec<_> = world.client.records("VDI").unwrap().into_iter().collect();
    for (disk, _) in all {
        world.call("VDI.destroy", &of(&disk));
    }
    let folder: &Path = machine.image.parent().unwrap();
    let names = folder.read_dir().unwrap().map(|one| one.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| !is_hidden(name)).collect();
    assert_eq!(left, Vec::<std::ffi::OsString>::new());
    let answer = world.call("VM.destroy", &of(&machine.reference));
    assert_eq!(answer, Value::text(""));
}
