//! Check finds in damaged images what QEMU finds.

use std::path::{Path, PathBuf};

use image::{ImageError, run_now};

use crate::qemu::{
    Scratch, check, open, open_to_write, patch, qemu_check, qemu_img, qemu_io, word,
};

const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COPIED: u64 = 1 << 63;

/// Offsets of the tables of an image with one L2 table and clusters of 64 KiB.
struct Places {
    path: PathBuf,
    l1: u64,
    l2: u64,
    block: u64,
    data: u64,
}

fn image(scratch: &Scratch) -> Places {
    let path = scratch.image("a.qcow2", "", "10M");
    qemu_io(&path, &["write -q -P 1 0 256k".into(), "write -q -z 512k 64k".into()]);
    let l1 = word(&path, 40);
    let l2 = word(&path, l1) & OFFSET;
    let block = word(&path, word(&path, 48));
    let data = word(&path, l2) & OFFSET;
    Places { path, l1, l2, block, data }
}

fn set(path: &Path, offset: u64, value: u64) {
    patch(path, offset, &value.to_be_bytes());
}

impl Places {
    fn set_refcount(&self, offset: u64, value: u16) {
        patch(&self.path, self.block + offset / 65536 * 2, &value.to_be_bytes());
    }
}

#[test]
fn faults_are_counted_as_by_qemu() {
    type Damage = fn(&Places);
    let cases: [(&str, Damage); 9] = [
        ("leak", |at| set(&at.path, at.l2, 0)),
        ("leaked count", |at| at.set_refcount(at.data, 2)),
        ("refcount too small", |at| at.set_refcount(at.data, 0)),
        ("beyond the end", |at| set(&at.path, at.l2, COPIED | 1 << 40)),
        ("two entries, one cluster", |at| set(&at.path, at.l2, word(&at.path, at.l2 + 8))),
        ("data over the L1 table", |at| set(&at.path, at.l2, COPIED | at.l1)),
        ("L2 table is the L1 table", |at| set(&at.path, at.l1, COPIED | at.l1)),
        ("refcount block is missing", |at| set(&at.path, word(&at.path, 48), 0)),
        ("not marked as copied", |at| set(&at.path, at.l2, at.data)),
    ];
    for (what, damage) in cases {
        let scratch = Scratch::new();
        let places = image(&scratch);
        assert!(check(&places.path).is_clean());
        damage(&places);
        let report = check(&places.path);
        let (corruptions, leaks) = qemu_check(&places.path);
        assert!(corruptions + leaks > 0, "{what}");
        assert_eq!(report.errors > 0, corruptions > 0, "{what}: {:?}", report.faults);
        assert_eq!(report.leaks, leaks, "{what}: {:?}", report.faults);
        assert_eq!(report.faults.len() as u64, report.errors + report.leaks, "{what}");
    }
}

/// QEMU's check sees no fault here, because the refcount is right.
#[test]
fn a_table_that_shares_its_cluster_is_an_error_even_with_the_right_refcount() {
    let scratch = Scratch::new();
    let places = image(&scratch);
    set(&places.path, places.l2, places.l1);
    places.set_refcount(places.l1, 2);
    places.set_refcount(places.data, 0);
    let report = check(&places.path);
    assert!(report.faults.iter().any(|fault| fault.problem.contains("shares")), "{report:?}");
}

#[test]
fn a_lookup_of_a_damaged_entry_is_an_error() {
    for value in [COPIED | 1 << 40, COPIED | 0x5_0200, 1 << 60] {
        let scratch = Scratch::new();
        let places = image(&scratch);
        set(&places.path, places.l2, value);
        let mut image = open(&places.path);
        let refused = run_now(image.lookup(0));
        assert!(matches!(refused, Err(ImageError::Corrupt { .. })), "{value:#x} {refused:?}");
        assert!(run_now(image.lookup(65536)).is_ok());
        assert!(run_now(image.map(0, 100)).is_err());
    }
}

#[test]
fn leaks_are_repaired_unless_there_are_errors() {
    let scratch = Scratch::new();
    let places = image(&scratch);
    set(&places.path, places.l2, 0);
    places.set_refcount(places.data + 65536, 1);
    let report = run_now(open_to_write(&places.path).repair_leaks()).unwrap();
    assert_eq!((report.leaks, report.repaired_leaks), (0, 1));
    assert_eq!(qemu_check(&places.path), (0, 0));
    assert!(check(&places.path).is_clean());
    set(&places.path, places.l2 + 8, 0);
    places.set_refcount(places.l1, 0);
    let before = std::fs::read(&places.path).unwrap();
    let refused = run_now(open_to_write(&places.path).repair_leaks());
    assert!(matches!(refused, Err(ImageError::Repair { .. })), "{refused:?}");
    assert!(std::fs::read(&places.path).unwrap() == before);
}

#[test]
fn a_repair_leaves_right_refcounts_and_marks() {
    let scratch = Scratch::new();
    let places = image(&scratch);
    qemu_img(&["snapshot", "-c", "s", places.path.to_str().unwrap()]);
    let before = check(&places.path);
    assert!(before.is_clean(), "{before:?}");
    places.set_refcount(places.data, 5); // two references
    let report = run_now(open_to_write(&places.path).repair_leaks()).unwrap();
    assert_eq!((report.repaired_leaks, report.repaired_marks), (1, 0));
    assert_eq!(qemu_check(&places.path), (0, 0));
    // A snapshot whose deletion ended in the middle: its clusters have one reference, not two.
    patch(&places.path, 60, &0u32.to_be_bytes());
    let report = run_now(open_to_write(&places.path).repair_leaks()).unwrap();
    assert!(report.is_clean() && report.repaired_leaks >= 6, "{report:?}");
    assert_eq!(report.repaired_marks, 5, "the L2 table and four data clusters");
    assert_eq!(qemu_check(&places.path), (0, 0));
    assert!(check(&places.path).is_clean());
}
