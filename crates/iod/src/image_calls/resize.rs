//! Growth of images that no program writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disk::DiskError;
use image::qcow2::Qcow2Format;
use image::vhd::{OpenOptions, VhdFormat};
use model::image::{ImageFormat, ImageResize};
use model::spec::{Backend, MAX_DISK_BYTES};
use rustix::fs::{fstat, fsync, ftruncate};

use super::ImageCallError;
use super::open_file::{Locking, OpenFile};
use super::source::Source;

/// Unit of the size of a disk, in bytes.
const SECTOR: u64 = 512;

/// Makes the disk of the top image of a tree larger. Returns the path and format of this image.
pub(super) fn resize(
    call: &ImageResize,
    stop: &Arc<AtomicBool>,
) -> Result<(PathBuf, ImageFormat), ImageCallError> {
    let top = call.image.image().and_then(|(file, format)| Some((file.path()?, format)));
    let none = || ImageCallError::Refused("an image is given by its path".into());
    let (path, format) = top.ok_or_else(none)?;
    let below = match &call.image {
        Backend::Qcow2 { backing, .. } | Backend::Vhd { backing, .. } => backing.as_deref(),
        _ => None,
    };
    let below = below.map(|below| Source::open(below, stop, false)).transpose()?;
    let (has_below, below_len) = (below.is_some(), below.map_or(0, |below| below.size()));
    let size = call.size;
    match format {
        ImageFormat::Raw => resize_raw(path, size)?,
        ImageFormat::Qcow2 => {
            let open = |file| Qcow2Format::open(Arc::new(file), has_below);
            let mut open = OpenFile::open(path, Locking::Write, open)?;
            open.run(path, async |format| format.resize(size, below_len).await)?;
        }
        ImageFormat::Vhd => {
            let options = OpenOptions { has_below, ..OpenOptions::new(size) };
            let open = |file| VhdFormat::open(Arc::new(file), options);
            let mut open = OpenFile::open(path, Locking::Write, open)?;
            open.run(path, async |format| format.resize(size, below_len).await)?;
        }
    }
    Ok((path.into(), format))
}

fn resize_raw(path: &Path, size: u64) -> Result<(), ImageCallError> {
    let open = OpenFile::open(path, Locking::Write, |_| std::future::ready(Ok(())))?;
    let found = fstat(&open.file).map_err(DiskError::os("measure", path))?;
    let has = u64::try_from(found.st_size).unwrap_or_default();
    if size < has || !size.is_multiple_of(SECTOR) || size > MAX_DISK_BYTES {
        let problem = format!(
            "a disk of {has} bytes becomes larger, to a multiple of {SECTOR} bytes, not {size}"
        );
        return Err(ImageCallError::Refused(problem));
    }
    let grown = ftruncate(&open.file, size).and_then(|()| fsync(&open.file));
    Ok(grown.map_err(DiskError::os("grow", path))?)
}
