//! A kernel and its ramdisk that are stored as VDIs.

use std::fs::{self, OpenOptions};
use std::io::copy;
use std::path::Path;

use testkit::ringwayd::fleet::Sr;
use xenapi::Value;
use xenapi::client::ClientError;

use super::records::{of, start, with};
use super::world::{DISK_BYTES, PATIENCE, World};

/// Unit of disk sizes, in bytes.
const UNIT: u64 = 1 << 20;

/// Creates a VDI with the content of a file, padded with zeroes. Returns its UUID. `images` is the
/// directory of the SR.
fn disk(world: &mut World, (sr, images): (&str, &Path), file: &Path) -> String {
    let bytes = i64::try_from(file.metadata().unwrap().len().next_multiple_of(UNIT)).unwrap();
    let Value::Map(mut new) = world.new_disk("kept") else { panic!("no record") };
    new.insert("SR".into(), Value::text(sr));
    new.insert("virtual_size".into(), Value::Int(bytes.max(DISK_BYTES)));
    let disk = world.made("VDI.create", &[Value::Map(new)]);
    let image = images.join(format!("{}.raw", world.record("VDI", &disk).text("uuid")));
    let mut into = OpenOptions::new().write(true).open(image).unwrap();
    copy(&mut fs::File::open(file).unwrap(), &mut into).unwrap();
    world.record("VDI", &disk).text("uuid").to_owned()
}

#[test]
fn a_guest_boots_from_disks_that_hold_its_kernel_and_ramdisk() {
    let mut world = World::new();
    let machine = world.guest("kept");
    let guest = testkit::guest::artifacts().unwrap();
    let default = world.client.records("pool").unwrap().remove(0).1.text("default_SR").to_owned();
    let images =
        world.daemon.dir().join("state/sr").join(world.record("SR", &default).text("uuid"));
    let kernel = disk(&mut world, (&default, &images), &guest.bzimage);
    // An SR without a configured location uses the default directory.
    let usual = Sr::make(&mut world.client, ("usual", "dir"), &[]).unwrap().reference;
    let images = world.daemon.dir().join("state/sr/default");
    let ramdisk = disk(&mut world, (&usual, &images), &guest.initramfs);
    let set = |world: &mut World, field: &str, named: &str| {
        let named = Value::text(named);
        world.call(&format!("VM.set_{field}"), &with(&machine.reference, [named]));
    };
    let large = world.disk();
    world.call("VDI.resize", &with(&large, [Value::Int(257 << 20)]));
    let large = world.record("VDI", &large).text("uuid").to_owned();
    for (named, says) in [(&*large, "256"), (&*kernel, "no such disk")] {
        set(&mut world, "PV_kernel", named);
        set(&mut world, "PV_ramdisk", "6d0c3f4e-0000-4000-8000-000000000000");
        let refused = world.client.run("VM.start", &start(&machine.reference), PATIENCE);
        let Err(ClientError::Api(error)) = refused else { panic!("{refused:?}") };
        let text = format!("{error} {:?}", error.params);
        assert!(text.contains(says), "{text}");
    }
    set(&mut world, "PV_ramdisk", &ramdisk);
    world.call("VM.start", &start(&machine.reference));
    assert_eq!(world.shell(&machine).run("echo here", PATIENCE).unwrap(), "here");
    world.call("VM.hard_shutdown", &of(&machine.reference));
    // A snapshot puts a second image over the one with the kernel.
    let of_kernel = world.client.call("VDI.get_by_uuid", &[Value::text(&*kernel)]).unwrap();
    world.call("VDI.snapshot", &[of_kernel, Value::Map(std::collections::BTreeMap::new())]);
    let refused = world.client.run("VM.start", &start(&machine.reference), PATIENCE);
    let Err(ClientError::Api(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.code, "BOOTLOADER_FAILED");
    assert!(error.params.concat().contains("several images"), "{error} {:?}", error.params);
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}
