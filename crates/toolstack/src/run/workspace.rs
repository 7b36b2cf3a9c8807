//! Directory for the sockets of one run.
//!
//! A killed run leaves its directory. So each contains a file that its run has locked. The kernel
//! releases the lock with the process, and the next run removes directories without a lock.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use tempfile::TempDir;

/// Prefix of the directories' names.
const PREFIX: &str = "ringway-";
/// File that a running run has locked.
const LOCK: &str = "lock";

/// Private directory. Dropping it removes the directory with its content.
#[derive(Debug)]
pub(crate) struct Workspace {
    dir: TempDir,
    _lock: File,
}

impl Workspace {
    pub(crate) fn new(under: &Path) -> io::Result<Self> {
        remove_abandoned(under);
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .rand_bytes(6)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(under)?;
        // Lock the file before it gets its name, so that others always find it locked.
        let unnamed = dir.path().join("new");
        let lock = OpenOptions::new().write(true).create_new(true).open(&unnamed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&unnamed, dir.path().join(LOCK))?;
        Ok(Self { dir, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn remove(self) -> io::Result<()> {
        self.dir.close()
    }
}

/// Removes the directories of killed runs. Failures are ignored: the directory may belong to
/// another user.
fn remove_abandoned(under: &Path) {
    let Ok(entries) = std::fs::read_dir(under) else { return };
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if named && abandoned(&entry.path()).is_ok_and(|is| is) {
            let _stays = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns whether this is the directory of a run that has ended.
fn abandoned(dir: &Path) -> io::Result<bool> {
    let found = dir.symlink_metadata()?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let lock = OpenOptions::new().write(true).custom_flags(flags).open(dir.join(LOCK))?;
    Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Returns the directory for the user's sockets: `$XDG_RUNTIME_DIR` if it exists, else the
/// directory for temporary files.
pub fn scratch_of_user() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|dir| dir.is_dir()).unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_goes_with_the_next() {
        let under = tempfile::tempdir().unwrap();
        let living = Workspace::new(under.path()).unwrap();
        let killed = Workspace::new(under.path()).unwrap();
        std::fs::write(killed.path().join("d.sock"), "").unwrap();
        let left = killed.dir.keep();
        drop(killed._lock);
        // Entries of others with similar names.
        for name in ["ringway-other", "else"] {
            std::fs::create_dir(under.path().join(name)).unwrap();
        }
        std::fs::write(under.path().join("else").join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(under.path().join("else"), under.path().join("ringway-link"))
            .unwrap();
        let next = Workspace::new(under.path()).unwrap();
        assert!(!left.exists());
        for stays in [living.path(), next.path()] {
            assert!(stays.join(LOCK).exists(), "{}", stays.display());
        }
        for stays in ["ringway-other", "else/lock", "ringway-link"] {
            assert!(under.path().join(stays).exists(), "{stays}");
        }
        next.remove().unwrap();
        assert!(living.path().exists());
    }
}
