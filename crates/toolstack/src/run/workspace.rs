//! A directory for the sockets of one run.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A private directory, removed with what is in it.
#[derive(Debug)]
pub(super) struct Workspace {
    dir: TempDir,
}

impl Workspace {
    pub(super) fn new(under: &Path) -> io::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("ringway-")
            .rand_bytes(6)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(under)?;
        Ok(Self { dir })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn remove(self) -> io::Result<()> {
        self.dir.close()
    }
}

/// Where the user's sockets go: `$XDG_RUNTIME_DIR` if it is there, else the directory for
/// temporary files.
pub(super) fn scratch_of_user() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|dir| dir.is_dir()).unwrap_or_else(std::env::temp_dir)
}
