//! State of a storage in a file, by which the processes of one host share the storage.
//!
//! The file lies on a memory file system and is named by layout and device. Each process that uses
//! it has a number, and an OFD lock on the byte of that number: when the process ends, in whatever
//! way, the lock goes, and others see that. Byte 0 is locked while a process enters or leaves, and
//! while the slots of an ended process are released. The last process removes the file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use memory::Mapping;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::process::geteuid;
use share::{CELLS, LAYOUT_VERSION};

use super::StorageError;
use crate::file::lock_range;

/// Processes of a storage.
const PROCESSES_MAX: u64 = 1024;
/// Tries to open a file that others remove at the same time.
const TRIES: usize = 100;
const BYTES: u64 = CELLS as u64 * 8;
/// Permissions of others, which must have none.
const OTHERS: u32 = 0o077;

/// Membership of this process in the state of a storage.
#[derive(Debug)]
pub(super) struct StateFile {
    file: File,
    path: PathBuf,
    process: u64,
    /// Locked while this process has byte 0: OFD locks do not exclude threads.
    byte_0: Mutex<()>,
}

impl StateFile {
    /// Enters the state of the storage on a device, in a folder of a memory file system. `open` gets
    /// its memory, zeroed if no other process uses it, and the number of this process. A former
    /// process may have left slots of that number.
    ///
    /// # Errors
    /// The folder cannot be written, the file is not of this user or not in memory, or too many
    /// processes use the storage.
    pub(super) fn enter<S>(
        folder: &Path,
        device: u64,
        open: impl Fn(Mapping, u64) -> Result<S, StorageError>,
    ) -> Result<(Self, S), StorageError> {
        let path = folder.join(format!("share-{LAYOUT_VERSION}-{device:x}"));
        let failed = |source| StorageError::State { path: path.clone(), source };
        for _ in 0..TRIES {
            let file = open_file(&path).map_err(failed)?;
            lock(&file, 0, Wait::Yes).map_err(failed)?;
            if !is_at(&file, &path) {
                continue;
            }
            let file_bytes = file.metadata().map_err(failed)?.len();
            if file_bytes == 0 {
                // Reserved, because an access to memory without storage would end the process.
                fallocate(&file, FallocateFlags::empty(), 0, BYTES)
                    .map_err(|errno| failed(errno.into()))?;
            } else if file_bytes != BYTES {
                return Err(failed(io::Error::other("another program made it; remove it")));
            }
            let mapping = Mapping::keeping(file.as_fd(), BYTES)?;
            if !is_locked(&file, 1, PROCESSES_MAX).map_err(failed)? {
                mapping.cells().iter().for_each(|cell| cell.store(0, Relaxed));
            }
            let free = (1..=PROCESSES_MAX).find(|number| lock(&file, *number, Wait::No).is_ok());
            let process =
                free.ok_or_else(|| failed(io::Error::other("too many processes use it")))?;
            let state = open(mapping, process)?;
            let entered = Self { file, path, process, byte_0: Mutex::default() };
            unlock(&entered.file, 0);
            return Ok((entered, state));
        }
        Err(failed(io::Error::other("other processes remove it again and again")))
    }

    /// Returns the path of the FIFO by which others wake a process.
    pub(super) fn fifo(&self, process: u64) -> PathBuf {
        fifo(&self.path, process)
    }

    /// Returns the number of this process.
    pub(super) fn process(&self) -> u64 {
        self.process
    }

    /// Calls `release` for those of the other processes that have ended. Does nothing while another
    /// process enters or leaves: a later call does it.
    pub(super) fn release_ended(
        &self,
        others: impl IntoIterator<Item = u64>,
        release: impl Fn(u64),
    ) {
        let Ok(_byte_0) = self.byte_0.try_lock() else { return };
        if lock(&self.file, 0, Wait::No).is_err() {
            return;
        }
        // A number outside of the range is nonsense that a process has stored.
        for process in others.into_iter() {
            if process > PROCESSES_MAX || matches!(is_locked(&self.file, process, 1), Ok(false)) {
                let _ = fs::remove_file(self.fifo(process));
                release(process);
            }
        }
        unlock(&self.file, 0);
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.fifo(self.process));
        // If another process enters now, the file is that one's to remove.
        let is_alone = lock(&self.file, 0, Wait::No).is_ok()
            && matches!(is_locked(&self.file, 1, PROCESSES_MAX), Ok(false))
            && is_at(&self.file, &self.path);
        if is_alone {
            let _ = fs::remove_file(&self.path);
        }
        // The memory has the file open for longer than this.
        [self.process, 0].into_iter().for_each(|byte| unlock(&self.file, byte));
    }
}

/// Returns the path of a process' FIFO.
fn fifo(state: &Path, process: u64) -> PathBuf {
    let mut name = OsString::from(state);
    name.push(format!(".{process}"));
    name.into()
}

/// Opens the file, or makes it. Its size is 0 if it is new.
fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != geteuid().as_raw() || found.mode() & OTHERS != 0 {
        return Err(io::Error::other("it is not a file of this user alone"));
    }
    Ok(file)
}

/// Returns whether the file still has this path.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let open = file.metadata().map(identity);
    matches!((open, fs::symlink_metadata(path).map(identity)), (Ok(one), Ok(other)) if one == other)
}

/// Whether a lock waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Yes,
    No,
}

fn lock(file: &File, byte: u64, wait: Wait) -> io::Result<()> {
    let range = lock_range(libc::F_WRLCK, byte as i64);
    let command = match wait {
        Wait::Yes => FcntlArg::F_OFD_SETLKW(&range),
        Wait::No => FcntlArg::F_OFD_SETLK(&range),
    };
    fcntl(file, command)?;
    Ok(())
}

fn unlock(file: &File, byte: u64) {
    // A failure needs no action: closing the file releases the lock.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&lock_range(libc::F_UNLCK, byte as i64)));
}

/// Returns whether another open file has a lock on one of these bytes.
fn is_locked(file: &File, from: u64, bytes: u64) -> io::Result<bool> {
    let mut range = lock_range(libc::F_WRLCK, from as i64);
    range.l_len = bytes as i64;
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut range))?;
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}
