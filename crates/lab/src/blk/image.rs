//! Images to read from.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Bytes of null and memory disks, and of images.
pub const DISK_BYTES: u64 = 64 << 20;

/// Bytes written or read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The images, removed when dropped.
#[derive(Debug)]
pub struct Images {
    /// On a disk.
    pub disk: PathBuf,
    /// On tmpfs.
    pub tmpfs: PathBuf,
    _dirs: [tempfile::TempDir; 2],
}

impl Images {
    /// Makes the images and brings them into the page cache.
    ///
    /// # Errors
    /// If there is no room.
    pub fn create(scratch: &Path) -> Result<Self> {
        let dirs = [dir_in(scratch)?, dir_in(Path::new("/dev/shm"))?];
        let disk = dirs[0].path().join("disk.img");
        let tmpfs = dirs[1].path().join("memory.img");
        create(&disk, DISK_BYTES)?;
        create(&tmpfs, DISK_BYTES)?;
        Ok(Self { disk, tmpfs, _dirs: dirs })
    }
}

/// Writes an image without holes, brings it to the disk, and leaves it in the page
/// cache.
///
/// # Errors
/// If there is no room.
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
        // Each chunk is one rotation further, so that no two are alike.
        chunk.rotate_left(1);
        let now = (bytes - done).min(CHUNK_BYTES as u64);
        file.write_all(&chunk[..now as usize]).with_context(what)?;
        done += now;
    }
    file.sync_all().with_context(what)?;
    warm(path)
}

/// A directory for images, removed when dropped.
///
/// # Errors
/// If `parent` takes none.
pub fn dir_in(parent: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("ringway-lab-").tempdir_in(parent);
    made.with_context(|| format!("cannot make images in {}; give --scratch", parent.display()))
}

/// Reads a file once, so that it is in the page cache.
///
/// # Errors
/// If it cannot be read.
pub fn warm(path: &Path) -> Result<()> {
    let what = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(what)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while file.read(&mut chunk).with_context(what)? > 0 {}
    Ok(())
}
