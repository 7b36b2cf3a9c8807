//! Space beside the state file, reserved for a full disk.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};

/// Reserved bytes: some hundred small batches.
const RESERVE_BYTES: u64 = 1 << 20;
/// Least free space, in bytes, to reserve some. With less, other programs need it more.
const FREE_BYTES_MIN: u64 = 4 * RESERVE_BYTES;
/// Suffix after the name of the state file.
const SUFFIX: &str = ".reserve";

/// File that occupies the reserved space. Its content is not used.
#[derive(Debug)]
pub(super) struct SpaceReserve {
    path: PathBuf,
    /// True if the file exists.
    kept: bool,
}

impl SpaceReserve {
    /// Opens the reserve beside this state file. An earlier process may have left it.
    pub(super) fn beside(state: &Path) -> Self {
        let mut path = state.as_os_str().to_owned();
        path.push(SUFFIX);
        let path = PathBuf::from(path);
        let kept = fs::metadata(&path).is_ok_and(|found| found.len() >= RESERVE_BYTES);
        Self { path, kept }
    }

    /// Reserves space, if enough is free and none is reserved yet.
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
                tracing::debug!("cannot reserve space in {}: {error}", self.path.display());
            }
        }
    }

    fn take(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&self.path)?;
        Ok(fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?)
    }

    /// Frees the reserved space. Returns false if none was reserved.
    pub(super) fn give(&mut self) -> bool {
        if !std::mem::take(&mut self.kept) {
            return false;
        }
        let given = fs::remove_file(&self.path).is_ok();
        if given {
            tracing::warn!("the disk is full: using the space reserved in {}", self.path.display());
        }
        given
    }
}
