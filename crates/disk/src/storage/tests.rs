//! Files by which processes share a storage.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::Ordering::Relaxed;

use ::share::LAYOUT_VERSION;
use tempfile::TempDir;

use super::*;

const DEVICE: u64 = 0x103;

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn path(folder: &TempDir) -> std::path::PathBuf {
    folder.path().join(format!("share-{LAYOUT_VERSION}-103"))
}

fn enter(folder: &TempDir) -> Result<(StateFile, Mapping), StorageError> {
    StateFile::enter(folder.path(), DEVICE, |memory, _| Ok(memory))
}

#[test]
fn numbers_differ_and_the_last_process_removes_the_file() {
    let folder = folder();
    let (first, memory) = enter(&folder).unwrap();
    memory.cells()[7].store(9, Relaxed);
    let (second, seen) = enter(&folder).unwrap();
    assert_eq!((first.process(), second.process()), (1, 2));
    assert_eq!(seen.cells()[7].load(Relaxed), 9);
    let ended = |others: &[u64]| {
        let released = Mutex::new(Vec::new());
        let note = |process| released.lock().unwrap().push(process);
        second.release_ended(others.iter().copied(), note);
        released.into_inner().unwrap()
    };
    // 3 has ended or never was, and the last one is no number of a process.
    assert_eq!(ended(&[1, 3, u64::MAX]), [3, u64::MAX]);
    drop((first, memory));
    assert_eq!(ended(&[1]), [1]);
    let (third, _memory) = enter(&folder).unwrap();
    assert_eq!(third.process(), 1);
    drop(second);
    assert!(path(&folder).exists());
    drop(third);
    assert!(!path(&folder).exists());
}

#[test]
fn a_file_that_nobody_uses_is_zeroed() {
    let folder = folder();
    let (first, memory) = enter(&folder).unwrap();
    memory.cells()[7].store(9, Relaxed);
    // All processes were killed: the file stays.
    let copy = folder.path().join("copy");
    std::fs::copy(path(&folder), &copy).unwrap();
    drop((first, memory));
    std::fs::rename(copy, path(&folder)).unwrap();
    let (_state_file, memory) = enter(&folder).unwrap();
    assert!(memory.cells().iter().all(|cell| cell.load(Relaxed) == 0));
}

#[test]
fn files_of_others_are_refused_and_stay() {
    type Make = fn(&std::path::Path);
    let cases: [(Make, &str); 4] = [
        (|path| std::fs::write(path, "mine").unwrap(), "not a file of this user alone"),
        (
            |path| {
                std::fs::write(path, "mine").unwrap();
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
            },
            "another program made it",
        ),
        (|path| symlink("/dev/shm/target", path).unwrap(), "symbolic link"),
        (|path| std::fs::create_dir(path).unwrap(), "directory"),
    ];
    for (make, told) in cases {
        let folder = folder();
        make(&path(&folder));
        let error = enter(&folder).unwrap_err();
        let StorageError::State { source, .. } = &error else { panic!("{error}") };
        assert!(source.to_string().contains(told), "{told}: {source}");
        assert!(std::fs::symlink_metadata(path(&folder)).is_ok());
    }
    let missing = StateFile::enter(std::path::Path::new("/dev/shm/none"), DEVICE, |_, _| Ok(()));
    assert!(missing.unwrap_err().to_string().contains("/dev/shm/none/share-"));
}
