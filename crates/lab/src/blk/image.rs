//! Disk images.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Size in bytes of null disks, memory disks and images.
pub const DISK_BYTES: u64 = 64 << 20;

/// Bytes per write or read call.
const CHUNK_BYTES: usize = 1 << 20;

/// Images of an experiment, removed on drop.
#[derive(Debug)]
pub struct Images {
    /// Image on a disk.
    pub disk: PathBuf,
    /// Image on tmpfs.
    pub tmpfs: PathBuf,
    dirs: [tempfile::TempDir; 2],
}

impl Images {
    /// Creates the images and loads them into the page cache.
    ///
    /// # Errors
    /// The file system is full.
    pub fn create(scratch: &Path) -> Result<Self> {
        let dirs = [dir_in(scratch)?, dir_in(Path::new("/dev/shm"))?];
        let disk = dirs[0].path().join("disk.img");
        let tmpfs = dirs[1].path().join("memory.img");
        create(&disk, DISK_BYTES)?;
        create(&tmpfs, DISK_BYTES)?;
        Ok(Self { disk, tmpfs, dirs })
    }

    /// Returns the folder on a disk, for images of single samples.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.dirs[0].path()
    }
}

/// Creates an image without holes, syncs it, and leaves it in the page cache.
///
/// # Errors
/// The file system is full.
pub fn create(path: &Path, bytes: u64) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let mut file = File::create(path).with_context(what)?;
    let mut state = 1u64;
    let mut chunk: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 11).to_le_bytes()
    })
    .take(CHUNK_BYTES / 8)
    .flatten()
    .collect();
    let mut done = 0;
    while done < bytes {
        // Each chunk is rotated by one more byte, so that no two are equal.
        chunk.rotate_left(1);
        let now = (bytes - done).min(CHUNK_BYTES as u64);
        file.write_all(&chunk[..now as usize]).with_context(what)?;
        done += now;
    }
    file.sync_all().with_context(what)?;
    warm(path)
}

/// Creates a directory for images, removed on drop.
///
/// # Errors
/// `parent` is not writable.
pub fn dir_in(parent: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("ringway-lab-").tempdir_in(parent);
    made.with_context(|| format!("cannot make images in {}; give --scratch", parent.display()))
}

/// Reads a file once, so that it is in the page cache.
///
/// # Errors
/// The file cannot be read.
pub fn warm(path: &Path) -> Result<()> {
    let what = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(what)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while file.read(&mut chunk).with_context(what)? > 0 {}
    Ok(())
}
