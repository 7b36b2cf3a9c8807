//! Room beside the state file that is kept for a full disk.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};

/// Bytes that are kept: some hundred small batches.
const RESERVE_BYTES: u64 = 1 << 20;
/// Bytes that must be free before they are kept: else they would be taken from who needs them now.
const FREE_BYTES_MIN: u64 = 4 * RESERVE_BYTES;
/// After the name of the state file.
const SUFFIX: &str = ".reserve";

/// A file that takes room. Nobody reads it.
#[derive(Debug)]
pub(super) struct SpaceReserve {
    path: PathBuf,
    /// It is there.
    kept: bool,
}

impl SpaceReserve {
    /// Beside this state file, as another process may have left it.
    pub(super) fn beside(state: &Path) -> Self {
        let mut path = state.as_os_str().to_owned();
        path.push(SUFFIX);
        let path = PathBuf::from(path);
        let kept = fs::metadata(&path).is_ok_and(|found| found.len() >= RESERVE_BYTES);
        Self { path, kept }
    }

    /// Keeps room, if there is more than enough and none is kept yet.
    pub(super) fn keep(&mut self) {
        if self.kept {
            return;
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let free = |system: StatVfs| system.f_bavail.saturating_mul(system.f_frsize);
        if !statvfs(directory).is_ok_and(|system| free(system) >= FREE_BYTES_MIN) {
            return;
        }
        match self.take() {
            Ok(()) => self.kept = true,
            Err(error) => {
                let _ = fs::remove_file(&self.path);
                tracing::debug!("no room is kept in {}: {error}", self.path.display());
            }
        }
    }

    fn take(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&self.path)?;
        Ok(fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?)
    }

    /// Gives the room back to the file system; false: none is kept.
    pub(super) fn give(&mut self) -> bool {
        if !std::mem::take(&mut self.kept) {
            return false;
        }
        let given = fs::remove_file(&self.path).is_ok();
        if given {
            tracing::warn!("the disk is full: the room kept in {} is used", self.path.display());
        }
        given
    }
}
