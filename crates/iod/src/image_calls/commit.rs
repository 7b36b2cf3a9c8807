//! New image with what the guest of an overlay has written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::{Disk as _, DiskError};
use image::{ImageError, Presence};
use model::image::ImageCommit;
use model::spec::Backend;
use overlay::{GRANULE, OverlayDisk};

use super::ImageCallError;
use super::convert::{Progress, reference};
use super::new_file::{NewFile, plain};
use super::target::{Target, TargetFormat};

/// Bytes that are read together: whole clusters.
const CHUNK: u64 = 2 << 20;

/// Writes the blocks of an overlay over `base` to a new qcow2 image. No request changes the overlay
/// meanwhile.
pub(super) fn commit(
    call: &ImageCommit,
    (overlay, base): (&OverlayDisk, &Backend),
    stop: &Arc<AtomicBool>,
    progress: &Progress,
) -> Result<(), ImageCallError> {
    let path = &call.path;
    let failed = ImageCallError::image(path);
    let size = overlay.geometry().size;
    progress.total.store(size, Ordering::Relaxed);
    // Other programs cannot open each base from a path: the tree names it then.
    let backing = reference(path, base).ok();
    let file = NewFile::create(path).map_err(DiskError::os("create", path))?;
    let own = plain(file.fd().try_clone().map_err(DiskError::os("create", path))?, false);
    let mut target =
        Target::create(own, TargetFormat::Qcow2Over(backing), size).map_err(&failed)?;
    let unit = target.unit_bytes();
    let mut buffer = vec![0; CHUNK as usize];
    let mut at = 0;
    while at < size {
        if stop.load(Ordering::Relaxed) {
            return Err(failed(ImageError::Stopped));
        }
        let next = overlay.next_written(at);
        at = at.max(next - next % CHUNK);
        if next < size {
            // At most the length of the buffer.
            let part = buffer.get_mut(..(size - at).min(CHUNK) as usize).unwrap_or_default();
            let blocks = overlay.read_written(at, part)?;
            let units = units(&blocks, GRANULE as usize / unit, part.len().div_ceil(unit));
            target.write_units(at, part, &units).map_err(&failed)?;
            at += CHUNK;
        } else {
            at = size;
        }
        progress.done.store(at.min(size), Ordering::Relaxed);
    }
    target.finish().map_err(&failed)?;
    Ok(file.publish().map_err(DiskError::os("store", path))?)
}

/// Returns the presence of `count` units, of which each block has `each`.
fn units(blocks: &[Presence], each: usize, count: usize) -> Vec<Presence> {
    blocks.iter().flat_map(|block| std::iter::repeat_n(*block, each)).take(count).collect()
}
