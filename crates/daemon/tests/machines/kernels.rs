//! A kernel and its ramdisk that are kept as disks.

use std::fs::{self, OpenOptions};
use std::io::copy;
use std::path::Path;

use xenapi::Value;
use xenapi::client::ClientError;

use super::records::{of, start, with};
use super::world::{DISK_BYTES, PATIENCE, World};

/// Sizes of disks are multiples of this, in bytes.
const UNIT: u64 = 1 << 20;

/// A disk with what a file holds, and zeroes behind it: its UUID.
fn disk(world: &mut World, file: &Path) -> String {
    let bytes = i64::try_from(file.metadata().unwrap().len().next_multiple_of(UNIT)).unwrap();
    let disk = world.disk();
    world.call("VDI.resize", &with(&disk, [Value::Int(bytes.max(DISK_BYTES))]));
    let image = world.image(&disk);
    let mut into = OpenOptions::new().write(true).open(image).unwrap();
    copy(&mut fs::File::open(file).unwrap(), &mut into).unwrap();
    world.record("VDI", &disk).text("uuid").to_owned()
}

#[test]
fn a_guest_boots_from_disks_that_hold_its_kernel_and_ramdisk() {
    let mut world = World::new();
    let machine = world.guest("kept");
    let guest = testkit::guest::artifacts().unwrap();
    let kernel = disk(&mut world, &guest.kernel);
    let ramdisk = disk(&mut world, &guest.initramfs);
    let set = |world: &mut World, field: &str, named: &str| {
        let named = Value::text(named);
        world.call(&format!("VM.set_{field}"), &with(&machine.reference, [named]));
    };
    set(&mut world, "PV_kernel", &kernel);
    set(&mut world, "PV_ramdisk", "6d0c3f4e-0000-4000-8000-000000000000");
    let refused = world.client.run("VM.start", &start(&machine.reference), PATIENCE);
    let Err(ClientError::Api(error)) = refused else { panic!("{refused:?}") };
    let told = format!("{error} {:?}", error.params);
    assert!(told.contains("PV_ramdisk") && told.contains("there is none"), "{told}");
    set(&mut world, "PV_ramdisk", &ramdisk);
    world.call("VM.start", &start(&machine.reference));
    assert_eq!(world.shell(&machine).run("echo here", PATIENCE).unwrap(), "here");
    world.call("VM.hard_shutdown", &of(&machine.reference));
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}
