//! Scans of folders with files that cannot be read.

use std::os::unix::ffi::OsStrExt as _;

use model::signature::MARK;

use super::*;
use crate::sr::dir::merge_journal::MERGE;
use crate::sr::dir::record::ImageName;
use crate::sr::dir::tree::record_name;
use crate::sr::{SrScan, Volume};

/// Damage of a record, and its name.
type Spoil = (&'static str, fn(&Path));

/// A disk 1 with the snapshot 2, which is left when the disk has gone, and a raw disk 9.
fn snapshot_without_disk() -> TempDir {
    let (dir, _) = made();
    for n in [1, 9] {
        open(&dir).create_volume(vdi(n), 4096).unwrap();
    }
    open(&dir).prepare_layer(vdi(1), vdi(3).0, None).unwrap();
    std::fs::write(dir.path().join(ImageName::qcow2(vdi(3).0).to_string()), "top").unwrap();
    open(&dir).settle_layer(vdi(1), None).unwrap();
    open(&dir).share_images(vdi(2), vdi(1), Some(1)).unwrap();
    open(&dir).destroy_volume(vdi(1)).unwrap();
    dir
}

fn ids(volumes: &[Volume]) -> Vec<VdiId> {
    volumes.iter().map(|one| one.vdi).collect()
}

#[test]
fn a_record_that_cannot_be_read_hides_its_volume_only() {
    let spoil: [Spoil; 6] = [
        ("garbage", |path| std::fs::write(path, [0xff; 99]).unwrap()),
        ("empty", |path| std::fs::write(path, "").unwrap()),
        ("truncated", |path| {
            let text = std::fs::read(path).unwrap();
            std::fs::write(path, &text[..text.len() / 2]).unwrap();
        }),
        ("folder", |path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        }),
        ("link to nothing", |path| {
            std::fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/nowhere", path).unwrap();
        }),
        ("pipe", |path| {
            std::fs::remove_file(path).unwrap();
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                .unwrap();
        }),
    ];
    for (case, spoil) in spoil {
        let dir = snapshot_without_disk();
        let record = record_name(vdi(2));
        let intact = std::fs::read(dir.path().join(&record)).unwrap();
        // A file of a user, and one that may be an image of the snapshot.
        std::fs::write(dir.path().join("mine.qcow2"), "").unwrap();
        let image = ImageName::qcow2(vdi(7).0).to_string();
        std::fs::write(dir.path().join(&image), "").unwrap();
        spoil(&dir.path().join(&record));
        let before = names(dir.path());

        let SrScan { volumes, doubtful, unreadable, .. } = open(&dir).scan().unwrap();
        assert_eq!(volumes, [], "{case}");
        // The image of the snapshot is named as a disk.
        assert_eq!(ids(&doubtful), [vdi(1), vdi(9)], "{case}");
        let [file] = &unreadable[..] else { panic!("{case}: {unreadable:?}") };
        assert_eq!((&file.name, file.vdi), (&record, Some(vdi(2))), "{case}");
        assert!(file.why.contains(&record), "{case}: {}", file.why);
        let found = open(&dir).foreign_files().unwrap();
        let found: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(found, ["mine.qcow2"], "{case}");
        for refused in [
            open(&dir).destroy_volume(vdi(9)),
            open(&dir).destroy(),
            open(&dir).begin_merge(vdi(8).0, &std::collections::BTreeSet::new()).map(drop),
        ] {
            assert!(refused.unwrap_err().to_string().contains(&record), "{case}");
        }
        assert_eq!(names(dir.path()), before, "{case}");

        if case == "folder" {
            std::fs::remove_dir(dir.path().join(&record)).unwrap();
        } else {
            std::fs::remove_file(dir.path().join(&record)).unwrap();
        }
        std::fs::write(dir.path().join(&record), intact).unwrap();
        let scan = open(&dir).scan().unwrap();
        assert_eq!(ids(&scan.volumes), [vdi(2), vdi(9)], "{case}");
        assert_eq!((scan.doubtful, scan.unreadable), (vec![], vec![]), "{case}");
    }
}

#[test]
fn other_records_are_read_beside_one_that_cannot_be() {
    let dir = snapshot_without_disk();
    open(&dir).prepare_layer(vdi(9), vdi(8).0, None).unwrap();
    std::fs::write(dir.path().join(ImageName::qcow2(vdi(8).0).to_string()), "top").unwrap();
    open(&dir).settle_layer(vdi(9), None).unwrap();
    std::fs::write(dir.path().join(record_name(vdi(2))), "{").unwrap();
    let scan = open(&dir).scan().unwrap();
    assert_eq!((ids(&scan.volumes), ids(&scan.doubtful)), (vec![vdi(9)], vec![vdi(1)]));
    // The names of images that a merge replaces are not known either.
    std::fs::remove_file(dir.path().join(record_name(vdi(2)))).unwrap();
    std::fs::write(dir.path().join(MERGE), "{").unwrap();
    let scan = open(&dir).scan().unwrap();
    assert_eq!((ids(&scan.volumes), ids(&scan.doubtful)), (vec![vdi(9)], vec![vdi(1)]));
    assert_eq!((&*scan.unreadable[0].name, scan.unreadable[0].vdi), (MERGE, None));
}

#[test]
fn an_image_that_is_no_file_hides_its_volume_only() {
    let dir = snapshot_without_disk();
    std::fs::remove_file(dir.path().join(name(vdi(1)))).unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.path().join(name(vdi(1)))).unwrap();
    let scan = open(&dir).scan().unwrap();
    assert_eq!((ids(&scan.volumes), scan.unreadable), (vec![vdi(9)], vec![]));
}

#[test]
fn a_name_that_is_not_utf_8_is_reported() {
    let dir = snapshot_without_disk();
    for odd in [&b"caf\xe9.qcow2"[..], b".caf\xe9"] {
        std::fs::write(dir.path().join(std::ffi::OsStr::from_bytes(odd)), "").unwrap();
    }
    assert_eq!(ids(&open(&dir).scan().unwrap().volumes), [vdi(2), vdi(9)]);
    let found = open(&dir).foreign_files().unwrap();
    let [file] = &found[..] else { panic!("{found:?}") };
    assert_eq!(file.name, "caf\u{fffd}.qcow2");
    assert!(file.format.as_ref().unwrap_err().contains("UTF-8"));
}

/// Only the first bytes of files without a record and without a mark are looked at. No volume is left
/// out: whether it is known is not for the worker to say.
#[test]
fn a_raw_file_that_begins_like_another_image_is_told() {
    let (dir, _) = made();
    for n in 1..=4 {
        open(&dir).create_volume(vdi(n), 4096).unwrap();
    }
    let path = |n| dir.path().join(name(vdi(n)));
    for (n, head) in [(1, &b"QFI\xfb"[..]), (2, b"QFI\xfb"), (3, b"LUKS\xba\xbe")] {
        std::fs::write(path(n), [head, &[0; 4096][head.len()..]].concat()).unwrap();
    }
    rustix::fs::setxattr(path(2), MARK, b"1", rustix::fs::XattrFlags::empty()).unwrap();
    let scan = open(&dir).scan().unwrap();
    assert_eq!(ids(&scan.volumes), [vdi(1), vdi(2), vdi(3), vdi(4)]);
    let [told] = &*scan.no_raw else { panic!("{:?}", scan.no_raw) };
    assert_eq!((&told.name, told.vdi), (&name(vdi(1)), vdi(1)));
    assert!(told.why.contains("qemu-img convert -p -f qcow2"), "{}", told.why);
}
