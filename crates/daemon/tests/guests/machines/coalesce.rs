//! Snapshots, merges of their images, clones and a revert while a guest writes and verifies.

use std::time::Duration;

use model::spec::Backend;
use testkit::is_soak;
use testkit::ringwayd::Shell;
use xenapi::Value;
use xenapi::client::Record;

use super::records::{of, record, slot, start, with};
use super::snapshots::{datapath_dies, disks, kill_datapath, layers, nothing_is_left, snapshot};
use super::world::{Machine, PATIENCE, World};

/// First block that tells which state the disk has.
const BLOCK: u64 = 7;
/// Blocks of the guest's writer: the first, and how many.
const WRITER: (u64, u64) = (1000, 64);
/// Writes numbers to blocks of the disk, reads each again, and notes what is wrong. Rests after each
/// number, except with `make soak`: a translated guest without rest takes a CPU from the merges.
const VERIFY: &str = "(n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); b=$((1000+n%64)); \
     echo $n | dd of=/dev/vda bs=512 seek=$b conv=notrunc,sync,fsync 2>/dev/null; \
     echo 3 >/proc/sys/vm/drop_caches; \
     r=$(dd if=/dev/vda bs=512 skip=$b count=1 2>/dev/null | tr -d '\\0'); \
     [ \"$r\" = $n ] || echo \"$n: $r\" >>/tmp/bad; \
     @REST@; done; echo $n >/tmp/rounds) >/dev/null 2>&1 & true";

/// Starts the writer in the guest.
fn begin_to_verify(shell: &mut Shell) {
    let rest = if is_soak() { ":" } else { "sleep 0.1" };
    shell.run(&VERIFY.replace("@REST@", rest), PATIENCE).unwrap();
}

#[test]
fn a_guest_goes_on_while_images_are_merged() {
    let mut world = World::new();
    let machine = world.guest("coalesce");
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    begin_to_verify(&mut shell);
    let mut snapshots = Vec::new();
    for number in 0..5 {
        machine.write(&mut shell, BLOCK + number, &format!("state-{number}"));
        machine.write(&mut shell, BLOCK + 10, &format!("last-{number}"));
        snapshots.push(snapshot(&mut world, &machine, &format!("s{number}")));
    }
    assert_eq!(layers(&mut world, &machine), 6);
    let kept = snapshots.remove(2);
    let device = plug_read_only(&mut world, &machine, &kept, &mut shell);
    for one in &snapshots {
        destroy(&mut world, one);
    }
    // One image below the snapshot that stays, and one above.
    until_layers(&mut world, &machine, 3);
    assert_content(&machine, &mut shell);
    assert_eq!(layers_of(&mut world, &device), 1);
    assert_snapshot(&mut shell);
    shown_as_tree(&mut world, &machine);
    datapath_dies(&mut world, &machine, &mut shell, (BLOCK + 10, "last-4"), 3);
    world.killed();
    assert_snapshot(&mut shell);
    world.call("VBD.unplug", &of(&device));
    world.call("VBD.destroy", &of(&device));
    destroy(&mut world, &kept);
    until_layers(&mut world, &machine, 2);
    assert_content(&machine, &mut shell);
    killed_in_between(&mut world, &machine, &mut shell);
    let (machine, mut shell) = cloned_and_reverted(&mut world, machine, shell);
    shell.run("touch /tmp/stop; until [ -e /tmp/rounds ]; do sleep 0.1; done", PATIENCE).unwrap();
    nothing_is_wrong(&mut shell);
    is_quiet(&mut world, &machine);
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    assert_content(&machine, &mut shell);
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
    nothing_is_left(&mut world, &machine);
}

/// Daemon and datapath die at any moment of merges, and the next ones go on.
fn killed_in_between(world: &mut World, machine: &Machine, shell: &mut Shell) {
    for (round, moment_ms) in (0..).zip([0, 25, 80]) {
        let taken = [0, 1, 2].map(|number| snapshot(world, machine, &format!("r{round}-{number}")));
        taken.iter().for_each(|one| destroy(world, one));
        // Merges run by now, and this is one of their moments.
        std::thread::sleep(Duration::from_millis(moment_ms));
        if round % 2 == 0 {
            kill_datapath(world);
        }
        world.killed();
    }
    let place = world.record("VDI", &machine.disk).text("SR").to_owned();
    world.call("SR.scan", &of(&place));
    until_layers(world, machine, 2);
    assert_content(machine, shell);
}

/// A clone has one moment of the writer, and so has the disk after a revert, which ends the guest
/// while it writes. Returns the machine with its new disk, whose guest writes again.
fn cloned_and_reverted(world: &mut World, machine: Machine, mut shell: Shell) -> (Machine, Shell) {
    let taken = snapshot(world, &machine, "moment");
    let (_, disk) = disks(world, &taken).remove(0);
    let clone = world.made("VDI.clone", &with(&disk, [record([])]));
    let device = world.made("VBD.create", &[slot(&machine.reference, Some(&clone))]);
    world.call("VBD.plug", &of(&device));
    shell.run("until [ -b /dev/vdb ]; do sleep 0.1; done", PATIENCE).unwrap();
    let moment = moment(&mut shell, "vdb");
    world.call("VBD.unplug", &of(&device));
    world.call("VBD.destroy", &of(&device));
    world.call("VDI.destroy", &of(&clone));
    machine.write(&mut shell, BLOCK, "lost");
    nothing_is_wrong(&mut shell);
    drop(shell);
    world.call("VM.revert", &of(&taken));
    world.call("VM.start", &start(&machine.reference));
    let (slot, disk) = disks(world, &machine.reference).remove(0);
    let image = world.image(&disk);
    let machine = Machine { slot, disk, image, ..machine };
    let mut shell = world.shell(&machine);
    assert_eq!(self::moment(&mut shell, "vda"), moment);
    assert_content(&machine, &mut shell);
    begin_to_verify(&mut shell);
    destroy(world, &taken);
    until_layers(world, &machine, 2);
    assert_content(&machine, &mut shell);
    (machine, shell)
}

/// Returns the last number of the writer that a disk has. Each of its blocks must have the last
/// number up to then, because each write is durable before the next one begins.
fn moment(shell: &mut Shell, device: &str) -> u64 {
    shell.run("echo 3 >/proc/sys/vm/drop_caches", PATIENCE).unwrap();
    let (first, count) = WRITER;
    let read = format!("dd if=/dev/{device} bs=512 skip={first} count={count} 2>/dev/null");
    let text = shell.run(&format!("{read} | tr -d '\\0'"), PATIENCE).unwrap();
    let found: Vec<u64> = text.split_whitespace().map(|one| one.parse().unwrap()).collect();
    let last = found.iter().copied().max().unwrap();
    assert!(last > 5, "{last} rounds");
    let mut numbers: Vec<u64> = (last.saturating_sub(count - 1).max(1)..=last).collect();
    numbers.sort_by_key(|number| number % count);
    assert_eq!(found, numbers);
    last
}

fn nothing_is_wrong(shell: &mut Shell) {
    assert_eq!(shell.run("cat /tmp/bad 2>/dev/null; true", PATIENCE).unwrap(), "");
}

/// Gives the guest the disk of a snapshot. Returns its VBD.
fn plug_read_only(
    world: &mut World,
    machine: &Machine,
    snapshot: &str,
    shell: &mut Shell,
) -> String {
    let (_, disk) = disks(world, snapshot).remove(0);
    let Value::Map(mut device) = slot(&machine.reference, Some(&disk)) else { panic!() };
    device.insert("mode".into(), Value::text("RO"));
    let device = world.made("VBD.create", &[Value::Map(device)]);
    world.call("VBD.plug", &of(&device));
    shell.run("until [ -b /dev/vdb ]; do sleep 0.1; done", PATIENCE).unwrap();
    assert_eq!(layers_of(world, &device), 3);
    assert_snapshot(shell);
    device
}

/// The disk of the third snapshot has what the disk had then.
fn assert_snapshot(shell: &mut Shell) {
    shell.run("echo 3 >/proc/sys/vm/drop_caches", PATIENCE).unwrap();
    for (block, word) in [(BLOCK, "state-0"), (BLOCK + 2, "state-2"), (BLOCK + 3, "")] {
        let read = format!("dd if=/dev/vdb bs=512 skip={block} count=1 2>/dev/null | tr -d '\\0'");
        assert_eq!(shell.run(&read, PATIENCE).unwrap(), word);
    }
}

fn layers_of(world: &mut World, device: &str) -> usize {
    let backend: Backend = world.served(device).unwrap().backend;
    backend.files().count()
}

/// The operator sees which image belongs to what.
fn shown_as_tree(world: &mut World, machine: &Machine) {
    let place = place(world, machine).text("uuid").to_owned();
    let output = world.ringway(&["image", "tree", &place]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let disk = world.record("VDI", &machine.disk).text("uuid").to_owned();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{output:?}");
    assert!(lines[0].contains(".raw") && lines[0].contains("snapshot "), "{text}");
    assert!(
        lines[2].starts_with("    ") && lines[2].contains(&format!("disk {disk} \"d\"")),
        "{text}"
    );
}

/// Destroys a snapshot with its disks.
fn destroy(world: &mut World, snapshot: &str) {
    let uuid = format!("uuid={}", world.record("VM", snapshot).text("uuid"));
    world.daemon.xe_prints(&["snapshot-uninstall", &uuid, "force=true"]).unwrap();
}

fn until_layers(world: &mut World, machine: &Machine, count: usize) {
    world.until("merged images", |world| layers(world, machine) == count);
    // The former images go after the last change.
    world.until("an end of the merge", |world| {
        let place = place(world, machine);
        !place.pairs("sm_config").contains_key("coalesce")
    });
}

fn place(world: &mut World, machine: &Machine) -> Record {
    let place = world.record("VDI", &machine.disk).text("SR").to_owned();
    world.record("SR", &place)
}

fn assert_content(machine: &Machine, shell: &mut Shell) {
    for number in 0..5 {
        assert_eq!(machine.read(shell, BLOCK + number), format!("state-{number}"));
    }
    assert_eq!(machine.read(shell, BLOCK + 10), "last-4");
}

/// Task and records tell what was done, and nothing is under way.
fn is_quiet(world: &mut World, machine: &Machine) {
    let tasks = world.client.records("task").unwrap().into_iter();
    let merges: Vec<_> = tasks.filter(|(_, one)| one.text("name_label") == "SR.coalesce").collect();
    assert!(!merges.is_empty());
    assert!(merges.iter().any(|(_, one)| one.text("status") == "success"), "{merges:?}");
    let disk = world.record("VDI", &machine.disk);
    assert!(!disk.pairs("sm_config").contains_key("coalesce"));
    let names = machine.image.parent().unwrap().read_dir().unwrap();
    let names: Vec<_> = names.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    let images: Vec<_> =
        names.iter().filter(|name| name.ends_with(".qcow2") || name.ends_with(".raw")).collect();
    assert_eq!(images.len(), 2, "{names:?}");
    assert!(!names.iter().any(|name| name == ".ringway-merge"), "{names:?}");
}
