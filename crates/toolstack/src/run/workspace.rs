//! A directory for the sockets of one run.
//!
//! A run that was killed leaves its directory. Each therefore holds a file that its run keeps
//! locked; the kernel drops the lock with the process, and the next run removes what nobody has
//! locked.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use tempfile::TempDir;

/// How the names of these directories begin.
const PREFIX: &str = "ringway-";
/// The file that a living run keeps locked.
const LOCK: &str = "lock";

/// A private directory, removed with what is in it.
#[derive(Debug)]
pub(super) struct Workspace {
    dir: TempDir,
    _lock: File,
}

impl Workspace {
    pub(super) fn new(under: &Path) -> io::Result<Self> {
        remove_abandoned(under);
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .rand_bytes(6)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(under)?;
        // Locked before it has its name: whoever finds it finds it locked.
        let unnamed = dir.path().join("new");
        let lock = OpenOptions::new().write(true).create_new(true).open(&unnamed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&unnamed, dir.path().join(LOCK))?;
        Ok(Self { dir, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn remove(self) -> io::Result<()> {
        self.dir.close()
    }
}

/// Removes the directories of runs that were killed. What cannot be removed stays: it is in
/// nobody's way, and may be somebody else's.
fn remove_abandoned(under: &Path) {
    let Ok(entries) = std::fs::read_dir(under) else { return };
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if named && abandoned(&entry.path()).is_ok_and(|is| is) {
            let _stays = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether this is a directory of ours whose run is gone.
fn abandoned(dir: &Path) -> io::Result<bool> {
    let found = dir.symlink_metadata()?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let lock = OpenOptions::new().write(true).custom_flags(flags).open(dir.join(LOCK))?;
    Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Where the user's sockets go: `$XDG_RUNTIME_DIR` if it is there, else the directory for
/// temporary files.
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
        // Things of others that only look like it.
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
