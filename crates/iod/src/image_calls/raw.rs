//! Calls on raw images.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use disk::{Disk, DiskError, FileDisk, FileOptions, OnFull, open_image};
use model::image::{ImageExtent, ImageExtentKind, ImageFormat, ImageInfo, ImageMap, ImageMapReply};
use rustix::fs::fstat;

use super::{ImageCallError, written_note};

/// Unit of the blocks in the status of a file, in bytes.
const STATUS_BLOCK: u64 = 512;

fn open(path: &Path) -> Result<FileDisk, DiskError> {
    FileDisk::open(FileOptions {
        path: path.into(),
        read_only: true,
        direct: false,
        block_size: None,
        on_full: OnFull::Error,
    })
}

/// Returns the space that a file uses on its storage, in bytes.
pub(super) fn stored_bytes(path: &Path, file: &OwnedFd) -> Result<u64, DiskError> {
    let found = fstat(file).map_err(DiskError::os("inspect", path))?;
    let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
    Ok(blocks.saturating_mul(STATUS_BLOCK))
}

pub(super) fn info(path: &Path) -> Result<ImageInfo, ImageCallError> {
    let size_bytes = open(path)?.geometry().size;
    let file = Arc::new(open_image(path, true)?);
    let notes = Vec::from_iter(written_note(path, &file)?);
    let is_written = !notes.is_empty();
    let stored_bytes = stored_bytes(path, &file)?;
    let (path, format, file_bytes) = (path.into(), ImageFormat::Raw, size_bytes);
    Ok(ImageInfo {
        path,
        format,
        size_bytes,
        file_bytes,
        stored_bytes,
        is_written,
        qcow2: None,
        vhd: None,
        notes,
    })
}

pub(super) fn map(call: &ImageMap) -> Result<ImageMapReply, ImageCallError> {
    let disk = open(&call.path)?;
    disk.activate()?;
    let size_bytes = disk.geometry().size;
    if call.start > size_bytes {
        let problem = format!("start {} is behind the end, {size_bytes}", call.start);
        return Err(ImageCallError::Refused(problem));
    }
    // The limit is at most 10,000.
    let found = disk.extents(call.start, size_bytes - call.start, call.limit as usize);
    let found = found.map_err(|error| ImageCallError::Refused(error.to_string()))?;
    let mut at = call.start;
    let extents = found.iter().map(|extent| {
        let (start, bytes) = (at, extent.len);
        at += bytes;
        match extent.hole {
            true => ImageExtent { start, bytes, kind: ImageExtentKind::Zero, file_offset: None },
            false => {
                let file_offset = Some(start);
                ImageExtent { start, bytes, kind: ImageExtentKind::Data, file_offset }
            }
        }
    });
    let extents = extents.collect();
    Ok(ImageMapReply { size_bytes, extents, next: (at < size_bytes).then_some(at) })
}
