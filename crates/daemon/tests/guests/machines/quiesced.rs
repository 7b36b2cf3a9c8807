//! Snapshots of a guest whose agent freezes its file systems.

use testkit::process::eventually;
use testkit::ringwayd::Shell;
use xenapi::Value;
use xenapi::client::ClientError;

use super::records::{of, slot, start, with};
use super::world::{Machine, PATIENCE, World};

/// Takes a snapshot at rest with `xe`. Returns its reference.
fn snapshot(world: &mut World, machine: &Machine) -> String {
    let vm = format!("uuid={}", machine.uuid);
    let words = ["vm-snapshot-with-quiesce", &vm, "new-name-label=quiet"];
    let uuid = world.daemon.xe_prints(&words).unwrap();
    world.made("VM.get_by_uuid", &of(&uuid))
}

/// Returns what a new clone of a snapshot's disk has in this file, without a repair.
fn clone_has(world: &mut World, machine: &Machine, snapshot: &str, shell: &mut Shell) -> String {
    let slots = world.client.records("VBD").unwrap().into_iter().map(|(_, one)| one);
    let taken = slots.filter(|one| one.text("VM") == snapshot && one.text("type") == "Disk");
    let disk = taken.map(|one| one.text("VDI").to_owned()).next().unwrap();
    let clone = world.made("VDI.clone", &with(&disk, [super::records::record([])]));
    let device = world.made("VBD.create", &[slot(&machine.reference, Some(&clone))]);
    world.call("VBD.plug", &of(&device));
    shell.run("until [ -b /dev/vdb ]; do sleep 0.1; done", PATIENCE).unwrap();
    let checked = shell.run("/usr/sbin/e2fsck -fn /dev/vdb >/tmp/check 2>&1; echo $?", PATIENCE);
    assert_eq!(checked.unwrap().trim(), "0", "{:?}", shell.run("cat /tmp/check", PATIENCE));
    shell.run("mkdir -p /clone && mount -t ext4 -o ro,noload /dev/vdb /clone", PATIENCE).unwrap();
    let read = shell.run("cat /clone/file", PATIENCE).unwrap();
    shell.run("umount /clone", PATIENCE).unwrap();
    read
}

#[test]
fn a_guest_is_at_rest_while_its_disks_are_taken() {
    let mut world = World::new();
    let machine = world.guest("quiet");
    world.call("VM.start", &start(&machine.reference));
    let mut shell = world.shell(&machine);
    shell.run("agent", PATIENCE).unwrap();
    eventually("the times of its boot are recorded", || {
        let vm = world.client.record("VM", &machine.reference).unwrap();
        let metrics = vm.reference("metrics").unwrap().to_owned();
        let metrics = world.client.record("VM_metrics", &metrics).unwrap();
        let config = metrics.pairs("other_config");
        ["place", "devices", "guest"]
            .iter()
            .all(|part| config.contains_key(&*format!("boot-{part}-ms")))
    });
    let make =
        "/usr/sbin/mke2fs -q -t ext4 /dev/vda && mkdir -p /data && mount -t ext4 /dev/vda /data";
    shell.run(make, PATIENCE).unwrap();
    // The guest caches this write.
    shell.run("echo cached >/data/file", PATIENCE).unwrap();
    let taken = snapshot(&mut world, &machine);
    // It goes on.
    shell.run("echo later >/data/file && sync", PATIENCE).unwrap();
    assert_eq!(clone_has(&mut world, &machine, &taken, &mut shell).trim(), "cached");

    // A daemon that finds a guest frozen thaws it.
    let frozen = world.daemon.dir().join("run/vm").join(&machine.uuid).join("frozen");
    assert!(!frozen.exists());
    std::fs::write(&frozen, "").unwrap();
    world.killed();
    eventually("the guest is thawed", || !frozen.exists());

    shell.run("kill $(pidof qemu-ga); while pidof qemu-ga; do sleep 0.1; done", PATIENCE).unwrap();
    let name = with(&machine.reference, [Value::text("again")]);
    eventually("the agent has gone", || {
        let refused = world.client.run("VM.snapshot_with_quiesce", &name, PATIENCE);
        let Err(ClientError::Api(error)) = refused else { return false };
        error.code == "VM_SNAPSHOT_WITH_QUIESCE_PLUGIN_DEOS_NOT_RESPOND"
    });
    drop(shell);
    world.call("VM.hard_shutdown", &of(&machine.reference));
}
