//! Volumes that go back to a content.

use super::*;
use crate::sr::dir::tests::tree::{image, images, listed};

/// Puts an empty image over a volume, as a caller does who finds that its top was written.
fn push(dir: &TempDir, n: u8, layer: u8) {
    open(dir).prepare_layer(vdi(n), vdi(layer).0, None).unwrap();
    super::tree::create_image(dir, layer);
    open(dir).settle_layer(vdi(n), None).unwrap();
}

/// Resets a volume. Returns the name of its new top, if it got one.
fn reset(dir: &TempDir, n: u8) -> Option<String> {
    let layer = open(dir).prepare_reset(vdi(n)).unwrap().into_iter().next()?;
    std::fs::write(dir.path().join(&layer), "new").unwrap();
    open(dir).settle_layer(vdi(n), None).unwrap();
    Some(layer)
}

fn write(dir: &TempDir, name: &str) {
    std::fs::write(dir.path().join(name), "written").unwrap();
}

/// Returns volume 1 of 8 KiB, which goes back to `1.raw`. Its top is image 2.
fn resetting() -> TempDir {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 8192).unwrap();
    push(&dir, 1, 2);
    open(&dir).set_reset_point(vdi(1), Some(vdi(9))).unwrap();
    dir
}

#[test]
fn a_reset_replaces_what_was_written_and_nothing_else() {
    let dir = resetting();
    assert!(open(&dir).volume(vdi(1)).unwrap().resets);
    assert_eq!(listed(&dir), [vdi(1)], "the reset point is hidden");
    assert_eq!(reset(&dir, 1), None, "nothing was written");
    write(&dir, &image(2));
    let first = reset(&dir, 1).unwrap();
    assert_eq!(images(&dir, 1), [first.clone(), name(vdi(1))]);
    assert!(!dir.path().join(image(2)).exists());
    // A snapshot keeps what the machine wrote.
    write(&dir, &first);
    super::tree::snapshot(&dir, 1, (4, 5));
    write(&dir, &image(5));
    let second = reset(&dir, 1).unwrap();
    assert_eq!(images(&dir, 1), [second, name(vdi(1))]);
    assert_eq!(images(&dir, 4), [first, name(vdi(1))]);
    assert!(!dir.path().join(image(5)).exists());
    let error = open(&dir).resize_volume(vdi(1), 16384).unwrap_err();
    assert!(refuses(&error, "virtual_size", "on-boot"), "{error}");
    open(&dir).destroy_volume(vdi(4)).unwrap();
    open(&dir).destroy_volume(vdi(1)).unwrap();
    let left: Vec<_> = names(dir.path()).into_iter().filter(|one| !one.starts_with('.')).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_volume_that_persists_keeps_what_is_written() {
    let dir = resetting();
    write(&dir, &image(2));
    open(&dir).set_reset_point(vdi(1), None).unwrap();
    assert_eq!(reset(&dir, 1), None);
    assert!(!open(&dir).volume(vdi(1)).unwrap().resets);
    assert_eq!(images(&dir, 1), [image(2), name(vdi(1))]);
    assert!(!dir.path().join(format!("{}.vdi", vdi(9))).exists());
    // The present content is the next one to go back to.
    push(&dir, 1, 3);
    open(&dir).set_reset_point(vdi(1), Some(vdi(8))).unwrap();
    write(&dir, &image(3));
    let top = reset(&dir, 1).unwrap();
    assert_eq!(images(&dir, 1), [top, image(2), name(vdi(1))]);
}

#[test]
fn a_crash_leaves_a_volume_before_or_after_its_reset() {
    let dir = resetting();
    write(&dir, &image(2));
    // The image was named, and not created.
    open(&dir).prepare_reset(vdi(1)).unwrap();
    open(&dir).remove_incomplete().unwrap();
    assert_eq!(images(&dir, 1), [image(2), name(vdi(1))]);
    // It was created, and not settled.
    let layer = open(&dir).prepare_reset(vdi(1)).unwrap().remove(0);
    std::fs::write(dir.path().join(&layer), "new").unwrap();
    open(&dir).remove_incomplete().unwrap();
    assert_eq!(images(&dir, 1), [layer.clone(), name(vdi(1))]);
    assert_eq!(listed(&dir), [vdi(1)]);
    open(&dir).settle_layer(vdi(1), None).unwrap();
    assert!(!dir.path().join(image(2)).exists());
    // A reset point without its volume goes.
    std::fs::remove_file(dir.path().join(format!("{}.vdi", vdi(1)))).unwrap();
    open(&dir).remove_incomplete().unwrap();
    assert!(!dir.path().join(format!("{}.vdi", vdi(9))).exists());
}
