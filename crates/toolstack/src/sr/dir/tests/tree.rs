//! Tests of volumes that share images.

use super::super::record::ImageName;
use super::super::tree::{import_name, record_name};
use super::*;
use crate::sr::{Names, SnapshotOf};

pub(super) fn image(n: u8) -> String {
    ImageName::qcow2(vdi(n).0).to_string()
}

/// Creates the image that the record of volume `of` names, as a `ringway-io` would.
pub(super) fn create_image(dir: &TempDir, n: u8) {
    std::fs::write(dir.path().join(image(n)), "an image").unwrap();
}

/// Takes a snapshot of a volume that no guest writes.
pub(super) fn snapshot(dir: &TempDir, of: u8, (snapshot, layer): (u8, u8)) {
    open(dir).prepare_layer(vdi(of), vdi(layer).0, None).unwrap();
    create_image(dir, layer);
    open(dir).settle_layer(vdi(of), None).unwrap();
    let added = open(dir).share_images(vdi(snapshot), vdi(of), Some(7)).unwrap().unwrap();
    let snapshot_of = Some(SnapshotOf { vdi: vdi(of), unix_seconds: 7 });
    assert!(added.read_only && added.snapshot_of == snapshot_of, "{added:?}");
}

pub(super) fn images(dir: &TempDir, n: u8) -> Vec<String> {
    open(dir).images(vdi(n)).unwrap()
}

pub(super) fn listed(dir: &TempDir) -> Vec<VdiId> {
    open(dir).volumes().unwrap().iter().map(|volume| volume.vdi).collect()
}

#[test]
fn a_snapshot_has_the_images_below_the_new_top() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 8192).unwrap();
    snapshot(&dir, 1, (2, 3));
    snapshot(&dir, 1, (4, 5));
    assert_eq!(images(&dir, 1), [image(5), image(3), name(vdi(1))]);
    assert_eq!(images(&dir, 2), [name(vdi(1))]);
    assert_eq!(images(&dir, 4), [image(3), name(vdi(1))]);
    let sizes: Vec<_> =
        open(&dir).volumes().unwrap().iter().map(|volume| volume.virtual_bytes).collect();
    assert_eq!(sizes, [8192; 3]);
    assert_eq!(open(&dir).prepare_resize(vdi(1), 16384).unwrap(), images(&dir, 1));
    assert_eq!(open(&dir).resize_volume(vdi(1), 16384).unwrap().virtual_bytes, 16384);
    assert_eq!(open(&dir).volume(vdi(4)).unwrap().virtual_bytes, 8192);
    for (volume, bytes, why) in [(1, 8192, "shrink"), (4, 16384, "never written")] {
        let error = open(&dir).resize_volume(vdi(volume), bytes).unwrap_err();
        assert!(refuses(&error, "virtual_size", why), "{error}");
    }
    let error = open(&dir).prepare_layer(vdi(2), vdi(6).0, None).unwrap_err();
    assert!(refuses(&error, "snapshot", "never written"), "{error}");
}

#[test]
fn images_go_with_the_last_volume_that_has_them() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    snapshot(&dir, 1, (2, 3));
    snapshot(&dir, 1, (4, 5));
    open(&dir).destroy_volume(vdi(1)).unwrap();
    // The raw image of a destroyed volume is no volume while others have it.
    assert_eq!(listed(&dir), [vdi(2), vdi(4)]);
    open(&dir).destroy_volume(vdi(1)).unwrap();
    assert_eq!(images(&dir, 4), [image(3), name(vdi(1))]);
    open(&dir).destroy_volume(vdi(4)).unwrap();
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS, &name(vdi(1)), &record_name(vdi(2))]);
    open(&dir).destroy_volume(vdi(2)).unwrap();
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS]);
}

#[test]
fn a_removal_that_a_crash_interrupts_ends_at_the_next_attach() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    snapshot(&dir, 1, (2, 3));
    open(&dir).destroy_volume(vdi(2)).unwrap();
    let removed = format!("{}.removed", vdi(1));
    std::fs::rename(dir.path().join(record_name(vdi(1))), dir.path().join(removed)).unwrap();
    assert_eq!(listed(&dir), []);
    open(&dir).remove_incomplete().unwrap();
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS]);
}

#[test]
fn a_layer_counts_only_if_it_is_in_use() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    let raw = name(vdi(1));
    // Nothing was created: one raw image is as before.
    open(&dir).prepare_layer(vdi(1), vdi(2).0, None).unwrap();
    let error = open(&dir).settle_layer(vdi(1), None).unwrap_err();
    assert!(refuses(&error, "snapshot", "not in use"), "{error}");
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS, &raw]);
    // The datapath still writes the old image.
    open(&dir).prepare_layer(vdi(1), vdi(2).0, Some(&raw)).unwrap();
    create_image(&dir, 2);
    let error = open(&dir).settle_layer(vdi(1), Some(&raw)).unwrap_err();
    assert!(refuses(&error, "snapshot", "not in use"), "{error}");
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS, &raw]);
    assert_eq!(open(&dir).settle_layer(vdi(1), Some(&raw)).unwrap().vdi, vdi(1));
    // The daemon ended before it heard that the datapath writes the new one.
    open(&dir).prepare_layer(vdi(1), vdi(2).0, Some(&raw)).unwrap();
    create_image(&dir, 2);
    assert_eq!(images(&dir, 1), [image(2), raw.clone()]);
    let before = open(&dir).prepare_layer(vdi(1), vdi(3).0, Some(&image(2))).unwrap();
    assert_eq!(before, [image(2), raw.clone()]);
    // It ended, the datapath did not change the image, and the next snapshot begins.
    create_image(&dir, 3);
    let before = open(&dir).prepare_layer(vdi(1), vdi(4).0, Some(&image(2))).unwrap();
    assert_eq!(before, [image(2), raw]);
    assert!(!dir.path().join(image(3)).exists());
}

#[test]
fn a_clone_is_no_volume_before_it_is_complete() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    assert!(!open(&dir).can_share(vdi(1)).unwrap(), "anybody may have written a raw volume");
    snapshot(&dir, 1, (2, 3));
    assert!(open(&dir).can_share(vdi(1)).unwrap(), "its top is new");
    assert!(open(&dir).can_share(vdi(2)).unwrap(), "a snapshot is never written");
    for (of, clone, layer) in [(1, 10, 11), (2, 12, 13)] {
        assert_eq!(open(&dir).share_images(vdi(clone), vdi(of), None).unwrap(), None);
        assert!(!listed(&dir).contains(&vdi(clone)));
        let base = open(&dir).prepare_layer(vdi(clone), vdi(layer).0, None).unwrap();
        assert_eq!(base, [name(vdi(1))], "an empty top is left out");
        create_image(&dir, layer);
        assert!(!open(&dir).settle_layer(vdi(clone), None).unwrap().read_only);
        assert!(listed(&dir).contains(&vdi(clone)));
    }
    // A clone whose own image could not be created never becomes a volume that writes those of others.
    open(&dir).share_images(vdi(16), vdi(2), None).unwrap();
    open(&dir).prepare_layer(vdi(16), vdi(17).0, None).unwrap();
    open(&dir).settle_layer(vdi(16), None).unwrap_err();
    assert!(!listed(&dir).contains(&vdi(16)));
    // A crash leaves one that is not complete.
    open(&dir).share_images(vdi(14), vdi(2), None).unwrap();
    open(&dir).prepare_layer(vdi(14), vdi(15).0, None).unwrap();
    create_image(&dir, 15);
    assert_eq!(listed(&dir), [vdi(1), vdi(2), vdi(10), vdi(12)]);
    open(&dir).remove_incomplete().unwrap();
    assert!(!dir.path().join(image(15)).exists());
    for gone in [14, 16] {
        assert!(!dir.path().join(record_name(vdi(gone))).exists());
    }
    // Content in the top is not left out.
    std::fs::write(dir.path().join(image(3)), "other content").unwrap();
    assert!(!open(&dir).can_share(vdi(1)).unwrap());
}

/// A raw volume with a name has a record, which does not have the size.
#[test]
fn a_named_volume_keeps_its_size_when_it_has_grown() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    let names = Names { label: "named".into(), description: String::new() };
    open(&dir).set_names(vdi(1), names).unwrap();
    open(&dir).resize_volume(vdi(1), 8192).unwrap();
    snapshot(&dir, 1, (2, 3));
    let sizes = open(&dir).volumes().unwrap().into_iter().map(|one| one.virtual_bytes);
    assert_eq!(sizes.collect::<Vec<_>>(), [8192, 8192]);
}

#[test]
fn a_volume_that_cannot_be_written_stays_beside_its_clones() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    let file = dir.path().join(name(vdi(1)));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o444)).unwrap();
    open(&dir).share_images(vdi(2), vdi(1), None).unwrap();
    open(&dir).prepare_layer(vdi(2), vdi(3).0, None).unwrap();
    std::fs::write(dir.path().join(image(3)), "top").unwrap();
    open(&dir).settle_layer(vdi(2), None).unwrap();
    assert_eq!(listed(&dir), [vdi(1), vdi(2)]);
    open(&dir).destroy_volume(vdi(1)).unwrap();
    assert_eq!(listed(&dir), [vdi(2)]);
    open(&dir).destroy_volume(vdi(2)).unwrap();
    assert!(!file.exists());
}

#[test]
fn a_volume_has_a_bounded_number_of_images() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    for n in 0..29 {
        snapshot(&dir, 1, (100 + n, 150 + n));
    }
    let error = open(&dir).prepare_layer(vdi(1), vdi(2).0, None).unwrap_err();
    assert!(refuses(&error, "snapshot", "vdi-copy"), "{error}");
    assert_eq!(images(&dir, 1).len(), 30);
}

#[test]
fn a_record_that_cannot_be_read_lets_nothing_be_removed() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    open(&dir).create_volume(vdi(9), 4096).unwrap();
    snapshot(&dir, 1, (2, 3));
    std::fs::write(dir.path().join(record_name(vdi(2))), "{").unwrap();
    let names_before = names(dir.path());
    for error in [
        open(&dir).volumes().unwrap_err(),
        open(&dir).destroy_volume(vdi(9)).unwrap_err(),
        open(&dir).remove_incomplete().unwrap_err(),
        open(&dir).images(vdi(2)).unwrap_err(),
    ] {
        assert!(refuses(&error, LOCATION, "from a backup"), "{error}");
    }
    assert_eq!(names(dir.path()), names_before);
    // Other volumes can still be used.
    assert_eq!(images(&dir, 1), [image(3), name(vdi(1))]);
    // An image that is not there makes only its volume disappear.
    std::fs::remove_file(dir.path().join(record_name(vdi(2)))).unwrap();
    std::fs::remove_file(dir.path().join(image(3))).unwrap();
    assert_eq!(listed(&dir), [vdi(9)]);
}

#[test]
fn what_a_volume_has_its_snapshots_and_clones_have() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    std::fs::remove_file(dir.path().join(STORAGE_BLOCKS)).unwrap();
    open(&dir).list_storage_blocks().unwrap();
    open(&dir).create_volume(vdi(9), 4096).unwrap();
    let marker = || std::fs::read_to_string(dir.path().join(MARKER)).unwrap();
    assert!(marker().contains("\"format\":1"));
    snapshot(&dir, 1, (2, 3));
    snapshot(&dir, 9, (10, 11));
    open(&dir).share_images(vdi(4), vdi(2), None).unwrap();
    let blocks = [1, 2, 4, 9, 10].map(|n| open(&dir).has_storage_blocks(vdi(n)).unwrap());
    assert_eq!(blocks, [true, true, true, false, false]);
    open(&dir).prepare_copy(vdi(5), 4096, true).unwrap();
    open(&dir).prepare_copy(vdi(6), 4096, false).unwrap();
    let blocks = [5, 6].map(|n| open(&dir).has_storage_blocks(vdi(n)).unwrap());
    assert_eq!(blocks, [true, false]);
    // An earlier version would take the shared raw image for a volume.
    assert!(marker().contains("\"format\":2"));
    SrDirectory::create(dir.path(), sr(1)).unwrap();
}

/// Creates the file with new content of a volume, as a `ringway-io` would.
fn create_import(dir: &TempDir, of: u8, content: &str) {
    std::fs::write(dir.path().join(import_name(vdi(of))), content).unwrap();
}

fn content(dir: &TempDir, name: &str) -> String {
    std::fs::read_to_string(dir.path().join(name)).unwrap()
}

#[test]
fn new_content_replaces_the_top_image_and_nothing_else() {
    let (dir, _) = made();
    let raw = name(vdi(1));
    open(&dir).create_volume(vdi(1), 8192).unwrap();
    std::fs::set_permissions(dir.path().join(&raw), PermissionsExt::from_mode(0o640)).unwrap();
    // What an earlier import left is not taken for a new one.
    create_import(&dir, 1, "old");
    assert_eq!(open(&dir).prepare_import(vdi(1)).unwrap(), [raw.as_str()]);
    open(&dir).settle_import(vdi(1), None).unwrap_err();
    create_import(&dir, 1, "new");
    open(&dir).settle_import(vdi(1), None).unwrap();
    assert_eq!(content(&dir, &raw), "new");
    let mode = std::fs::metadata(dir.path().join(&raw)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS, &raw]);
    // A volume with snapshots gets it in its own top.
    snapshot(&dir, 1, (2, 3));
    assert!(open(&dir).can_share(vdi(1)).unwrap());
    assert_eq!(open(&dir).prepare_import(vdi(1)).unwrap(), [image(3), raw.clone()]);
    create_import(&dir, 1, "an image");
    open(&dir).settle_import(vdi(1), None).unwrap();
    assert_eq!((content(&dir, &raw), content(&dir, &image(3))), ("new".into(), "an image".into()));
    assert!(!open(&dir).can_share(vdi(1)).unwrap(), "something was written to the top");
    let error = open(&dir).prepare_import(vdi(2)).unwrap_err();
    assert!(refuses(&error, "import", "never written"), "{error}");
    assert!(matches!(open(&dir).prepare_import(vdi(9)), Err(SrError::NoVolume(_))));
}

#[test]
fn a_part_of_a_disk_becomes_a_layer() {
    let (dir, _) = made();
    let raw = name(vdi(1));
    open(&dir).create_volume(vdi(1), 8192).unwrap();
    // A crash after the record names the layer, and before the file has its name.
    open(&dir).prepare_layer(vdi(1), vdi(7).0, None).unwrap();
    assert_eq!(open(&dir).prepare_import(vdi(1)).unwrap(), [raw.as_str()]);
    create_import(&dir, 1, "an image");
    assert_eq!(open(&dir).settle_import(vdi(1), Some(vdi(3).0)).unwrap().virtual_bytes, 8192);
    assert_eq!(images(&dir, 1), [image(3), raw.clone()]);
    let files = [MARKER, STORAGE_BLOCKS, &raw, &record_name(vdi(1)), &image(3)];
    let mut files = files.map(str::to_owned);
    files.sort();
    assert_eq!(names(dir.path()), files);
    // An import that ends without success leaves nothing.
    open(&dir).prepare_import(vdi(1)).unwrap();
    create_import(&dir, 1, "a part");
    open(&dir).abandon_import(vdi(1)).unwrap();
    open(&dir).abandon_import(vdi(1)).unwrap();
    assert_eq!(names(dir.path()), files);
    create_import(&dir, 1, "a part");
    open(&dir).clean().unwrap();
    assert_eq!(names(dir.path()), files);
}
