//! Kernels and initramfs of the QEMU guest: found, or built.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::peers::made;

/// Files that QEMU boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifacts {
    /// Path of the unpacked kernel. It boots faster than `bzimage`.
    pub kernel: PathBuf,
    /// Path of the kernel as a distribution packs it.
    pub bzimage: PathBuf,
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

/// Writes a configuration of `ringwayd` that allows VMs to boot the test guest, which becomes a
/// template.
///
/// # Errors
/// As [`artifacts`]; [`Error::Io`] if the file cannot be written.
pub fn boot_config() -> Result<NamedTempFile> {
    let kernel = artifacts()?.kernel;
    let directory = kernel.parent().unwrap_or(&kernel).display().to_string();
    let written = NamedTempFile::new().and_then(|mut config| {
        writeln!(config, "[boot]\ndirectories = [{directory:?}]").map(|()| config)
    });
    written.map_err(|e| Error::io("cannot write a configuration", e))
}

/// Returns the path of the initramfs for guests of 96 MiB, which has fewer programs.
///
/// # Errors
/// As [`artifacts`]; [`Error::Missing`] if the guest was built without it.
pub fn small_initramfs() -> Result<PathBuf> {
    let small = artifacts()?.initramfs.with_file_name("small.img");
    if small.is_file() {
        return Ok(small);
    }
    let (program, next) = (small.display().to_string(), "run `make guest`".to_owned());
    Err(Error::Missing { program, next })
}

/// Finds the files in a directory. Resolves the link to the current guest first, so that the files
/// belong together: the builder may install a new guest at any time.
fn find(dir: &Path) -> Option<Artifacts> {
    let dir = fs::canonicalize(dir.join("current")).unwrap_or_else(|_| dir.to_owned());
    let [kernel, bzimage, initramfs] =
        ["vmlinux", "vmlinuz", "initramfs.img"].map(|name| dir.join(name));
    let is_whole = [&kernel, &bzimage, &initramfs].into_iter().all(|file| file.is_file());
    is_whole.then_some(Artifacts { kernel, bzimage, initramfs })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        for name in ["vmlinux", "vmlinuz", "initramfs.img"] {
            fs::write(dir.join(name), "").unwrap();
        }
    }

    #[test]
    fn all_files_come_from_one_build() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find(dir.path()), None);
        put(dir.path());
        assert_eq!(find(dir.path()).unwrap().kernel, dir.path().join("vmlinux"));
        let build = dir.path().join("build-1");
        put(&build);
        std::os::unix::fs::symlink("build-1", dir.path().join("current")).unwrap();
        let found = find(dir.path()).unwrap();
        let build = fs::canonicalize(build).unwrap();
        assert_eq!(found.kernel, build.join("vmlinux"));
        assert_eq!(found.initramfs, build.join("initramfs.img"));
    }
}
