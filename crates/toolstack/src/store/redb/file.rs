//! State file: created atomically, opened by one process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ::redb::backends::FileBackend;
use ::redb::{Builder, Database, Error as RedbError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

use super::super::error::Holder;
use super::ending::wait_end;
use super::tables::StateFileError;

/// Cache of the file in bytes. The whole file is read once, and changes are small.
const CACHE_BYTES: usize = 16 << 20;
/// Longest wait for the end of a dying process, and for the lock of a dead one.
const REMAINS: Duration = Duration::from_secs(5);
/// The kernel's list of file locks (proc(5)).
const LOCKS: &str = "/proc/locks";

/// Creates a store under a temporary name, readable by its owner only, and renames it when it is
/// complete. If the process is killed meanwhile, an unused hidden file remains.
pub(super) fn create(
    path: &Path,
    begin: impl FnOnce(&Database) -> Result<(), StateFileError>,
) -> Result<(), StateFileError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let unnamed = tempfile::Builder::new().prefix(".state-").tempfile_in(directory);
    let unnamed = unnamed.map_err(RedbError::Io)?;
    let file = unnamed.reopen().map_err(RedbError::Io)?;
    let database = database(file)?;
    begin(&database)?;
    drop(database);
    match unnamed.persist_noclobber(path) {
        // Another process was faster, and has created the same.
        Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => {}
        named => drop(named.map_err(|failed| RedbError::Io(failed.error))?),
    }
    // A file name is on disk only after a sync of its directory.
    let directory = File::open(directory).map_err(RedbError::Io)?;
    Ok(directory.sync_all().map_err(RedbError::Io)?)
}

/// Opens the database in an existing file.
pub(super) fn open(path: &Path) -> Result<Database, StateFileError> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(RedbError::Io)?;
    // An empty file would silently become a new database, and hide the loss of its content.
    if file.metadata().map_err(RedbError::Io)?.len() == 0 {
        return Err(StateFileError::Wrong("it is empty".to_owned()));
    }
    database(file)
}

fn database(file: File) -> Result<Database, StateFileError> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    Ok(builder.create_with_backend(FileBackend::new(file)?)?)
}

/// Waits until the lock of a dead or dying process is released.
///
/// A killed process has its files open until the kernel has freed its memory. One that dies while
/// it spawns a program leaves a forked copy with all its open files, until that copy executes the
/// program.
pub(super) fn wait_lock_released(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    let try_lock = || flock(&file, FlockOperation::NonBlockingLockExclusive);
    let is_taken = || try_lock() == Err(Errno::WOULDBLOCK);
    if !is_taken() || holder(path).0.is_some_and(|pid| !wait_end(pid, REMAINS)) || !is_taken() {
        return;
    }
    tracing::info!("waiting for {}, which an ended process still has open", path.display());
    let (sender, free) = mpsc::channel();
    let waits = thread::Builder::new().name("state lock".to_owned()).spawn(move || {
        let _ = retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
        drop(file);
        let _ = sender.send(());
    });
    if waits.is_ok() {
        // Opening the file reports a later holder.
        let _ = free.recv_timeout(REMAINS);
    }
}

/// Returns the process that has locked the file, if it lives. A lock may outlive its process.
pub(super) fn holder(path: &Path) -> Holder {
    let locks = std::fs::read_to_string(LOCKS).unwrap_or_default();
    let found = path.metadata().ok().map(|of| (of.dev(), of.ino()));
    let pid = found.and_then(|(device, inode)| who_locks(&locks, device, inode));
    Holder(pid.filter(|pid| Path::new("/proc").join(pid.to_string()).exists()))
}

fn who_locks(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // A line with `->` is of a waiting process.
        let [_, _, _, _, pid, at, ..] = *words.as_slice() else { return None };
        let pid = (at == place).then(|| pid.parse().ok()).flatten();
        pid.filter(|pid| *pid != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_locked_a_file_is_told() {
        let locks = "\
            1: FLOCK  ADVISORY  WRITE 512 fd:01:1234 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 4242 fd:01:1235 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 999 fd:01:1236 0 EOF\n\
            3: POSIX  ADVISORY  READ 0 00:1b:77 0 EOF\n";
        let at = |inode| who_locks(locks, rustix::fs::makedev(0xfd, 1), inode);
        assert_eq!(at(1234), Some(512));
        assert_eq!(at(1235), Some(4242));
        assert_eq!(at(1236), None);
        // A process of another namespace.
        assert_eq!(who_locks(locks, rustix::fs::makedev(0, 0x1b), 77), None);
        assert_eq!(who_locks("odd\n", 0, 0), None);
    }
}
