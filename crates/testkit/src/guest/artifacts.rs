//! Kernel and initramfs of the QEMU guest: found, or built.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::peers::made;

/// Files that QEMU boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifacts {
    /// Path of the kernel.
    pub kernel: PathBuf,
    /// Path of the initramfs.
    pub initramfs: PathBuf,
}

/// Finds the guest in `RINGWAY_GUEST_DIR`, else in `.cache/guest` of this repository. If it does
/// not exist, builds it with `guest/build.sh`, which takes a lock, so several tests may call this
/// at once. An existing guest is used as it is; `make guest` updates it.
///
/// # Errors
/// [`Error::Process`] with the builder's message if it fails.
pub fn artifacts() -> Result<Artifacts> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = env::var_os("RINGWAY_GUEST_DIR").filter(|dir| !dir.is_empty());
    let dir = dir.map_or_else(|| repository.join(".cache/guest"), PathBuf::from);
    if let Some(found) = find(&dir) {
        return Ok(found);
    }
    made(&repository.join("guest/build.sh"), &dir)?;
    find(&dir).ok_or_else(|| Error::Missing {
        program: format!("the test guest in {}", dir.display()),
        next: "run `make guest`".to_owned(),
    })
}

/// Finds kernel and initramfs in a directory. Resolves the link to the current guest first, so that
/// both belong together: the builder may install a new guest at any time.
fn find(dir: &Path) -> Option<Artifacts> {
    let dir = fs::canonicalize(dir.join("current")).unwrap_or_else(|_| dir.to_owned());
    let found = Artifacts { kernel: dir.join("vmlinuz"), initramfs: dir.join("initramfs.img") };
    (found.kernel.is_file() && found.initramfs.is_file()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("vmlinuz"), "").unwrap();
        fs::write(dir.join("initramfs.img"), "").unwrap();
    }

    #[test]
    fn both_files_come_from_one_build() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find(dir.path()), None);
        put(dir.path());
        assert_eq!(find(dir.path()).unwrap().kernel, dir.path().join("vmlinuz"));
        let build = dir.path().join("build-1");
        put(&build);
        std::os::unix::fs::symlink("build-1", dir.path().join("current")).unwrap();
        let found = find(dir.path()).unwrap();
        let build = fs::canonicalize(build).unwrap();
        assert_eq!(found.kernel, build.join("vmlinuz"));
        assert_eq!(found.initramfs, build.join("initramfs.img"));
    }
}
