//! Tests of the directory without a worker.

mod adoption;
pub(super) mod crash;
mod merge;
mod reset;
mod scan;
mod tree;
mod whole;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use model::id::{SrId, Uuid, VdiId};
use tempfile::TempDir;

use super::directory::name;
use super::marker::MARKER;
use super::storage_blocks::STORAGE_BLOCKS;
use super::{LOCATION, SrDirectory};
use crate::sr::SrError;

fn sr(n: u8) -> SrId {
    SrId(Uuid::from_random([n; 16]))
}

fn vdi(n: u8) -> VdiId {
    VdiId(Uuid::from_random([n; 16]))
}

/// Creates an SR in its own directory.
fn made() -> (TempDir, SrId) {
    let dir = tempfile::tempdir().unwrap();
    SrDirectory::create(dir.path(), sr(1)).unwrap();
    (dir, sr(1))
}

fn open(dir: &TempDir) -> SrDirectory<'_> {
    SrDirectory::open(dir.path(), sr(1)).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn refuses(error: &SrError, key: &str, why: &str) -> bool {
    matches!(error, SrError::Config { key: at, why: message } if at == key && message.contains(why))
}

#[test]
fn a_volume_is_a_sparse_file_of_zeroes() {
    let (dir, _) = made();
    let sr_directory = open(&dir);
    let volume = sr_directory.create_volume(vdi(1), 64 << 30).unwrap();
    assert_eq!((volume.vdi, volume.virtual_bytes), (vdi(1), 64 << 30));
    assert!(volume.physical_bytes < 1 << 20 && !volume.read_only, "{volume:?}");
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS, &name(vdi(1))]);
    assert_eq!(sr_directory.volumes().unwrap(), [volume]);
    let file = dir.path().join(name(vdi(1)));
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let written = sr_directory.volume(vdi(1)).unwrap();
    assert_eq!(written.virtual_bytes, 1 << 20);
    assert!(written.physical_bytes >= 1 << 20, "{written:?}");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o444)).unwrap();
    assert!(sr_directory.volume(vdi(1)).unwrap().read_only);
}

#[test]
fn sizes_are_whole_units_and_never_shrink() {
    let (dir, _) = made();
    let sr_directory = open(&dir);
    assert_eq!(sr_directory.create_volume(vdi(1), 1).unwrap().virtual_bytes, 4096);
    assert_eq!(sr_directory.create_volume(vdi(1), 4096).unwrap().virtual_bytes, 4096);
    let error = sr_directory.create_volume(vdi(1), 4097).unwrap_err();
    assert!(matches!(&error, SrError::Os { what, .. } if what.contains("make")), "{error}");
    assert_eq!(sr_directory.resize_volume(vdi(1), 4097).unwrap().virtual_bytes, 8192);
    assert_eq!(sr_directory.resize_volume(vdi(1), 8192).unwrap().virtual_bytes, 8192);
    let error = sr_directory.resize_volume(vdi(1), 4096).unwrap_err();
    assert!(refuses(&error, "virtual_size", "8192"), "{error}");
    for bytes in [0, (1 << 60) + 1, u64::MAX] {
        let error = sr_directory.create_volume(vdi(2), bytes).unwrap_err();
        assert!(refuses(&error, "virtual_size", "is not in 1 to"), "{error}");
    }
}

#[test]
fn only_files_named_as_volumes_are_volumes() {
    let (dir, _) = made();
    let sr_directory = open(&dir);
    sr_directory.create_volume(vdi(1), 4096).unwrap();
    let of = |n| dir.path().join(name(vdi(n)));
    std::os::unix::fs::symlink("/etc/passwd", of(2)).unwrap();
    std::fs::create_dir(of(3)).unwrap();
    std::fs::write(dir.path().join("notes.raw"), "x").unwrap();
    std::fs::write(dir.path().join(name(vdi(0xab)).to_uppercase().replace("RAW", "raw")), "x")
        .unwrap();
    assert_eq!(sr_directory.volumes().unwrap().len(), 1);
    for n in [2, 3, 4] {
        assert!(
            matches!(sr_directory.volume(vdi(n)), Err(SrError::NoVolume(id)) if id == vdi(n)),
            "{n}"
        );
        sr_directory.resize_volume(vdi(n), 8192).unwrap_err();
    }
    let untouched = Path::new("/etc/passwd").metadata().unwrap().len();
    assert!(!untouched.is_multiple_of(4096));
    sr_directory.destroy_volume(vdi(1)).unwrap();
    sr_directory.destroy_volume(vdi(1)).unwrap();
    assert!(matches!(sr_directory.volume(vdi(1)), Err(SrError::NoVolume(_))));
}

#[test]
fn what_a_death_left_half_done_goes_and_the_rest_stays() {
    let (dir, _) = made();
    let half = format!(".new-{}", name(vdi(1)));
    std::fs::write(dir.path().join(&half), "half").unwrap();
    std::fs::write(dir.path().join("lost+found"), "another's").unwrap();
    let sr_directory = open(&dir);
    assert_eq!(sr_directory.volumes().unwrap(), []);
    // A create of the same volume removes the incomplete file at once.
    sr_directory.create_volume(vdi(1), 4096).unwrap();
    assert!(!names(dir.path()).contains(&half));
    std::fs::write(dir.path().join(&half), "half").unwrap();
    sr_directory.clean().unwrap();
    assert_eq!(names(dir.path()), [MARKER, STORAGE_BLOCKS, &name(vdi(1)), "lost+found"]);
}

#[test]
fn a_directory_that_is_not_the_right_one_is_not_used() {
    let (dir, ours) = made();
    SrDirectory::create(dir.path(), ours).unwrap();
    let error = SrDirectory::open(dir.path(), sr(2)).unwrap_err();
    assert!(refuses(&error, LOCATION, &ours.to_string()), "{error}");
    let error = SrDirectory::create(dir.path(), sr(2)).unwrap_err();
    assert!(refuses(&error, LOCATION, &ours.to_string()), "{error}");
    let vanished = |path: &Path| match SrDirectory::open(path, ours).unwrap_err() {
        SrError::Vanished { path: reported } => assert_eq!(reported, path),
        error => panic!("{error}"),
    };
    // A mount point without its file system.
    let bare = tempfile::tempdir().unwrap();
    vanished(bare.path());
    vanished(&dir.path().join("none"));
    vanished(&dir.path().join(".ringway-sr"));
    std::fs::write(dir.path().join(".ringway-sr"), "?").unwrap();
    let error = SrDirectory::open(dir.path(), ours).unwrap_err();
    assert!(refuses(&error, LOCATION, "cannot be parsed"), "{error}");
    std::fs::write(bare.path().join(name(vdi(1))), "somebody's").unwrap();
    let error = SrDirectory::create(bare.path(), ours).unwrap_err();
    assert!(refuses(&error, LOCATION, "empty directory"), "{error}");
    SrDirectory::create(&bare.path().join("a/b"), ours).unwrap();
    assert_eq!(SrDirectory::open(&bare.path().join("a/b"), ours).unwrap().volumes().unwrap(), []);
}

#[test]
fn an_end_takes_what_is_ours_and_nothing_else() {
    let (dir, ours) = made();
    assert_eq!(SrDirectory::probe(dir.path()).unwrap(), Some(ours));
    std::fs::write(dir.path().join("lost+found"), "another's").unwrap();
    let sr_directory = open(&dir);
    sr_directory.create_volume(vdi(1), 4096).unwrap();
    let error = sr_directory.destroy().unwrap_err();
    assert!(matches!(error, SrError::NotEmpty { volumes: 1 }), "{error}");
    assert_eq!(open(&dir).volumes().unwrap().len(), 1, "what is not empty stays as it is");
    sr_directory.destroy_volume(vdi(1)).unwrap();
    std::fs::write(dir.path().join(format!(".new-{}", name(vdi(2)))), "half").unwrap();
    sr_directory.destroy().unwrap();
    sr_directory.destroy().unwrap();
    assert_eq!(names(dir.path()), ["lost+found"]);
    assert_eq!(SrDirectory::probe(dir.path()).unwrap(), None);
    // The directory can now belong to another SR.
    SrDirectory::create(dir.path(), sr(2)).unwrap();
    assert_eq!(SrDirectory::probe(dir.path()).unwrap(), Some(sr(2)));
}

#[test]
fn a_place_that_cannot_be_looked_at_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let error = SrDirectory::probe(&dir.path().join("none")).unwrap_err();
    assert!(matches!(error, SrError::Vanished { .. }), "{error}");
    for odd in ["?", r#"{"format":1,"sr":"<UUID>"}"#, r#"{"format":2,"sr":""}"#] {
        std::fs::write(dir.path().join(".ringway-sr"), odd).unwrap();
        let error = SrDirectory::probe(dir.path()).unwrap_err();
        assert!(refuses(&error, LOCATION, ".ringway-sr"), "{error}");
    }
}
