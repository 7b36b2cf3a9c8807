//! Transfers that users of other servers have reported as broken.

use std::process::Command;

use super::*;

/// XenAdmin sends an empty format for a raw disk.
#[test]
fn an_empty_format_is_raw() {
    let mut world = World::new();
    let (disk, content) = (world.disk(), bytes(4));
    let put = world.put(&format!("vdi={disk}&format="), &content);
    assert_eq!(put.status, 200, "{}", put.text());
    let got = world.get(&format!("vdi={disk}&format="));
    assert!(got.status == 200 && got.body == content, "{}", got.head);
}

/// XenServer refused VHDs of more than 1 TiB: the number of a sector has 32 bits there.
#[test]
fn a_vhd_of_more_than_a_tebibyte_is_imported() {
    let mut world = World::new();
    let dir = world.daemon.dir().to_owned();
    let bytes = 1_536_u64 << 30;
    let [raw, vhd] = ["large.raw", "large.vhd"].map(|name| dir.join(name));
    let file = std::fs::File::create(&raw).unwrap();
    file.set_len(bytes).unwrap();
    for (at, byte) in [(0, 3), (bytes - 4096, 5)] {
        std::os::unix::fs::FileExt::write_all_at(&file, &[byte; 4096], at).unwrap();
    }
    let made = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "vpc", "-o", "force_size=on"])
        .args([&raw, &vhd])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let sr = Value::text(&world.sr);
    let fields = record([
        ("name_label", Value::text("large")),
        ("SR", sr),
        ("virtual_size", Value::Int(i64::try_from(bytes).unwrap())),
        ("type", Value::text("user")),
        ("sharable", Value::Bool(false)),
        ("read_only", Value::Bool(false)),
        ("other_config", record([])),
    ]);
    let disk = world.made("VDI.create", &[fields]);
    let put = world.put(&format!("vdi={disk}&format=vhd"), &std::fs::read(&vhd).unwrap());
    assert_eq!(put.status, 200, "{}", put.text());
    let record = world.client.record("VDI", &disk).unwrap();
    let image = std::fs::File::open(world.folder.join(format!("{}.raw", record.text("uuid"))));
    let image = image.unwrap();
    for (at, byte) in [(0, 3), (1 << 40, 0), (bytes - 4096, 5)] {
        let mut found = [9; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&image, &mut found, at).unwrap();
        assert_eq!(found, [byte; 4096], "{at}");
    }
    assert!(record.int("physical_utilisation") < 16 << 20, "zeroes take no space");
}
