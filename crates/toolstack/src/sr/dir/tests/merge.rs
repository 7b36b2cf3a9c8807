//! Tests of merges of images.

use std::collections::BTreeSet;

use super::super::merge_journal::MERGE;
use super::super::record::ImageName;
use super::super::tree::record_name;
use super::tree::{create_image, image, images, listed, snapshot};
use super::*;
use crate::sr::worker::WireMerge;

fn begin(dir: &TempDir, into: u8) -> Option<WireMerge> {
    open(dir).begin_merge(vdi(into).0, &BTreeSet::new()).unwrap()
}

fn users(dir: &TempDir) -> Vec<VdiId> {
    open(dir).merge_users().unwrap()
}

/// A volume with images 5, 3 and its own, of which a snapshot shows the two lower ones.
fn volume_with_snapshot() -> TempDir {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 8192).unwrap();
    snapshot(&dir, 1, (2, 3));
    snapshot(&dir, 1, (4, 5));
    open(&dir).destroy_volume(vdi(2)).unwrap();
    dir
}

#[test]
fn volumes_change_to_the_new_image_one_by_one() {
    let dir = volume_with_snapshot();
    let expected = WireMerge {
        chain: vec![image(3), name(vdi(1))],
        count: 2,
        into: name(vdi(9)),
        is_complete: false,
    };
    assert_eq!(begin(&dir, 9), Some(expected.clone()));
    assert_eq!(begin(&dir, 8), Some(expected.clone()), "one at a time");
    open(&dir).switch_merge(vdi(1)).unwrap_err();
    std::fs::write(dir.path().join(name(vdi(9))), [0; 8192]).unwrap();
    assert_eq!(begin(&dir, 8), Some(WireMerge { is_complete: true, ..expected }));
    assert_eq!(listed(&dir), [vdi(1), vdi(4)], "the new image is no volume");
    assert_eq!(users(&dir), [vdi(1), vdi(4)]);
    open(&dir).switch_merge(vdi(4)).unwrap();
    open(&dir).switch_merge(vdi(4)).unwrap();
    assert_eq!(images(&dir, 4), [name(vdi(9))]);
    assert!(!open(&dir).end_merge().unwrap(), "the volume has the former images");
    assert_eq!(users(&dir), [vdi(1)]);
    open(&dir).switch_merge(vdi(1)).unwrap();
    assert_eq!(images(&dir, 1), [image(5), name(vdi(9))]);
    assert!(open(&dir).end_merge().unwrap() && open(&dir).end_merge().unwrap());
    let mut left = [MARKER, STORAGE_BLOCKS].map(str::to_owned).to_vec();
    left.extend([image(5), name(vdi(9)), record_name(vdi(1)), record_name(vdi(4))]);
    left.sort();
    assert_eq!(names(dir.path()), left);
    assert_eq!(begin(&dir, 10), None);
    // The new image goes as others do.
    open(&dir).destroy_volume(vdi(1)).unwrap();
    open(&dir).destroy_volume(vdi(4)).unwrap();
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS]);
}

#[test]
fn volumes_come_and_go_during_a_merge() {
    let dir = volume_with_snapshot();
    begin(&dir, 9).unwrap();
    // A clone of the snapshot, and a layer over the volume.
    open(&dir).share_images(vdi(20), vdi(4), None).unwrap();
    open(&dir).prepare_layer(vdi(20), vdi(21).0, None).unwrap();
    create_image(&dir, 21);
    open(&dir).settle_layer(vdi(20), None).unwrap();
    snapshot(&dir, 1, (22, 23));
    std::fs::write(dir.path().join(name(vdi(9))), [0; 8192]).unwrap();
    open(&dir).switch_merge(vdi(20)).unwrap();
    // The last volume with the new image goes: the others still need it.
    open(&dir).destroy_volume(vdi(20)).unwrap();
    assert!(dir.path().join(name(vdi(9))).exists());
    for vdi in users(&dir) {
        open(&dir).switch_merge(vdi).unwrap();
    }
    assert!(open(&dir).end_merge().unwrap());
    assert_eq!(images(&dir, 1), [image(23), image(5), name(vdi(9))]);
    assert_eq!(images(&dir, 22), [image(5), name(vdi(9))]);
    assert_eq!(images(&dir, 4), [name(vdi(9))]);
    assert_eq!(open(&dir).foreign_files().unwrap(), []);
}

#[test]
fn a_merge_without_its_image_is_given_up() {
    let dir = volume_with_snapshot();
    begin(&dir, 9).unwrap();
    assert!(open(&dir).end_merge().unwrap());
    // A process that was about to end creates the image all the same.
    std::fs::write(dir.path().join(name(vdi(9))), "late").unwrap();
    assert_eq!(listed(&dir), [vdi(1), vdi(4)]);
    assert_eq!(begin(&dir, 10).unwrap().into, name(vdi(10)));
    assert!(!dir.path().join(name(vdi(9))).exists());
    // All volumes go before the image is there, and it comes nevertheless.
    open(&dir).destroy_volume(vdi(1)).unwrap();
    open(&dir).destroy_volume(vdi(4)).unwrap();
    std::fs::write(dir.path().join(name(vdi(10))), "late").unwrap();
    assert_eq!((listed(&dir), users(&dir)), (vec![], vec![]));
    assert!(open(&dir).end_merge().unwrap());
    assert!(!dir.path().join(name(vdi(10))).exists());
    std::fs::write(dir.path().join(name(vdi(10))), "late").unwrap();
    assert_eq!(begin(&dir, 11), None);
    assert_eq!(names(dir.path()), [MERGE, MARKER, STORAGE_BLOCKS]);
    open(&dir).destroy().unwrap();
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn what_must_stay_is_not_merged() {
    let dir = volume_with_snapshot();
    for kept in [1, 4] {
        let kept = [vdi(kept)].into();
        assert_eq!(open(&dir).begin_merge(vdi(9).0, &kept).unwrap(), None);
    }
    // An incomplete clone is about to be completed or removed.
    open(&dir).share_images(vdi(20), vdi(4), None).unwrap();
    assert_eq!(begin(&dir, 9), None);
    open(&dir).destroy_volume(vdi(20)).unwrap();
    // A snapshot of what would be the lower image.
    open(&dir).share_images(vdi(21), vdi(4), Some(1)).unwrap();
    assert!(begin(&dir, 9).is_some(), "both show the upper image");
}

#[test]
fn a_journal_that_cannot_be_read_lets_nothing_be_removed() {
    let dir = volume_with_snapshot();
    begin(&dir, 9).unwrap();
    std::fs::write(dir.path().join(MERGE), "{").unwrap();
    let before = names(dir.path());
    for error in [
        open(&dir).volumes().unwrap_err(),
        open(&dir).end_merge().unwrap_err(),
        open(&dir).destroy_volume(vdi(4)).unwrap_err(),
        open(&dir).begin_merge(vdi(9).0, &BTreeSet::new()).unwrap_err(),
    ] {
        assert!(refuses(&error, LOCATION, MERGE), "{error}");
    }
    assert_eq!(names(dir.path()), before);
}

#[test]
fn the_tree_of_images_tells_what_belongs_to_whom() {
    let dir = volume_with_snapshot();
    open(&dir).create_volume(vdi(30), 4096).unwrap();
    create_image(&dir, 40);
    std::fs::write(dir.path().join("notes.qcow2"), "somebody's").unwrap();
    begin(&dir, 9).unwrap();
    let tree = crate::sr::dir::image_tree(dir.path()).unwrap();
    let found = |name: &str| tree.images.iter().find(|image| image.name == name).unwrap();
    assert_eq!(tree.images.len(), 5, "{tree:?}");
    assert_eq!(found(&image(5)).below, Some(image(3)));
    assert!(found(&image(40)).orphan && !found(&name(vdi(30))).orphan);
    let foreign = open(&dir).foreign_files().unwrap();
    assert_eq!(
        foreign.into_iter().map(|one| one.name).collect::<Vec<_>>(),
        [&*image(40), "notes.qcow2"]
    );
    let of = |n: u8| tree.volumes.iter().find(|one| one.vdi == vdi(n).to_string()).unwrap();
    assert_eq!((of(4).read_only, of(30).images.len()), (true, 1));
    assert_eq!(of(4).snapshot_of, Some(vdi(1).to_string()));
    let merge = tree.merge.unwrap();
    assert_eq!((merge.images, merge.complete), (vec![image(3), name(vdi(1))], false));
    assert!(ImageName::parse(&merge.into).is_some());
    std::fs::remove_file(dir.path().join(image(5))).unwrap();
    let tree = crate::sr::dir::image_tree(dir.path()).unwrap();
    assert!(tree.images.iter().any(|one| one.name == image(5) && one.stored_bytes.is_none()));
    let bare = tempfile::tempdir().unwrap();
    let error = crate::sr::dir::image_tree(bare.path()).unwrap_err();
    assert!(refuses(&error, LOCATION, "no storage repository"), "{error}");
}
