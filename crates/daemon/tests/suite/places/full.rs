//! An SR on a file system that is really full.

use std::path::Path;

use testkit::in_namespace::in_little_room;
use xenapi::Value;

use super::*;

const NAME: &str =
    concat!(module_path!(), "::a_full_file_system_has_its_code_and_what_frees_room_works");

#[test]
fn a_full_file_system_has_its_code_and_what_frees_room_works() {
    in_little_room(NAME, 4, inside).unwrap();
}

fn inside(dir: &Path) {
    let (place, filler) = (dir.join("sr"), dir.join("filler"));
    let fill = || {
        let more = std::fs::write(&filler, vec![1; 8 << 20]).unwrap_err();
        assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);
    };
    let full = |error: &[String], least: u64| {
        let [code, needed, free] = error else { panic!("{error:?}") };
        assert_eq!(code, "SR_FULL");
        let (needed, free): (u64, u64) = (needed.parse().unwrap(), free.parse().unwrap());
        assert!(needed >= least && free < 1 << 20, "{error:?}");
    };
    let mut world = World::new();
    let args = world.sr(&place);
    fill();
    full(&world.refused("SR.create", &args), 1);
    std::fs::remove_file(&filler).unwrap();
    let sr = world.made("SR.create", &args);
    let first = world.disk(&sr);
    let snapshot = world.made("VDI.snapshot", &[Value::text(first.as_str()), record([])]);
    fill();
    let bytes = DISK_BYTES.unsigned_abs();
    full(&world.refused("VDI.create", &[disk(&sr)]), bytes);
    let grown = [Value::text(first.as_str()), Value::Int(3 * DISK_BYTES)];
    full(&world.refused("VDI.resize", &grown), 2 * bytes);
    world.call("SR.scan", &[Value::text(sr.as_str())]);
    let known = world.client.record("SR", &sr).unwrap();
    let left = known.texts("VDIs").len();
    assert_eq!(left, 2, "nothing is left of what could not be made");
    assert_eq!(known.int("physical_utilisation"), known.int("physical_size"));
    let disk = world.client.record("VDI", &first).unwrap();
    assert_eq!(disk.int("virtual_size"), DISK_BYTES);
    // Operations that free space work.
    for disk in [snapshot, first] {
        world.call("VDI.destroy", &[Value::text(disk)]);
    }
    std::fs::remove_file(&filler).unwrap();
    world.disk(&sr);
}
