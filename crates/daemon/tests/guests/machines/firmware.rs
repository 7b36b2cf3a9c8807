//! A VM that firmware boots from its bootable disk.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use testkit::boot_sector::bootable;
use xenapi::Value;

use super::records::{of, with};
use super::world::{PATIENCE, World};

/// Offset of the text in the sector. Firmware loads the sector at 0x7c00.
const TEXT_AT: u8 = 41;

/// Builds a boot sector that prints a text on the serial line and powers the VM off.
#[rustfmt::skip]
fn sector(says: &str) -> Vec<u8> {
    let mut sector = vec![
        0xfa,                         // cli
        0x31, 0xc0,                   // xor ax, ax
        0x8e, 0xd8,                   // mov ds, ax
        0xbe, TEXT_AT, 0x7c,          // mov si, text
        0xac,                         // next: lodsb
        0x84, 0xc0,                   // test al, al
        0x74, 0x12,                   // jz off
        0x88, 0xc4,                   // mov ah, al
        0xba, 0xfd, 0x03,             // mov dx, 0x3fd
        0xec,                         // wait: in al, dx
        0xa8, 0x20,                   // test al, 0x20: the line takes a byte
        0x74, 0xfb,                   // jz wait
        0x88, 0xe0,                   // mov al, ah
        0xba, 0xf8, 0x03,             // mov dx, 0x3f8
        0xee,                         // out dx, al
        0xeb, 0xe9,                   // jmp next
        0xb8, 0x00, 0x20,             // off: mov ax, 0x2000
        0xba, 0x04, 0x06,             // mov dx, 0x604: ACPI's control of the PIIX4
        0xef,                         // out dx, ax
        0xf4,                         // halt: hlt
        0xeb, 0xfd,                   // jmp halt
    ];
    assert_eq!(sector.len(), usize::from(TEXT_AT));
    sector.extend(says.bytes().chain([0]));
    bootable(&sector)
}

fn put(image: &Path, says: &str) {
    let image = OpenOptions::new().write(true).open(image).unwrap();
    image.write_all_at(&sector(says), 0).unwrap();
}

/// Returns the serial output of a VM until it ends.
fn serial_output(line: &mut UnixStream) -> String {
    line.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match line.read(&mut part) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&part[..count]),
            // QEMU was killed with unread input.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&all)),
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn firmware_boots_the_disk_that_is_bootable() {
    let mut world = World::new();
    let machine = world.plain("firmware");
    let (second, disk) = world.device(&machine.reference);
    put(&machine.image, "the first disk boots");
    put(&world.image(&disk), "the second disk boots");

    for (from, says) in
        [(&second, "the second disk boots"), (&machine.slot, "the first disk boots")]
    {
        for slot in [&machine.slot, &second] {
            world.call("VBD.set_bootable", &with(slot, [Value::Bool(slot == from)]));
        }
        // The VM starts paused, so that no output is missed.
        let paused = [Value::Bool(true), Value::Bool(false)];
        world.call("VM.start", &with(&machine.reference, paused));
        let console = world.daemon.dir().join("run/vm").join(&machine.uuid).join("console.sock");
        let mut line = UnixStream::connect(console).unwrap();
        world.call("VM.unpause", &of(&machine.reference));
        let output = serial_output(&mut line);
        assert!(output.contains(says) && output.matches("disk boots").count() == 1, "{output}");
        world.until_power(&machine, "Halted");
    }
    assert_eq!(world.messages(&machine), ["VM_SHUTDOWN", "VM_SHUTDOWN"]);
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}
