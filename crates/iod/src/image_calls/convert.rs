//! Copies of disks in new image files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use disk::DiskError;
use image::ImageError;
use model::image::ImageConvert;

use super::ImageCallError;
use super::new_file::NewFile;
use super::source::Source;
use super::target::Target;

/// Bytes that are copied together, a multiple of every cluster.
const CHUNK: usize = 2 << 20;

/// Progress of a copy.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
}

/// Copies a disk to a new file, which appears when it is complete.
pub(super) fn convert(
    call: &ImageConvert,
    stop: &Arc<AtomicBool>,
    progress: &Progress,
) -> Result<(), ImageCallError> {
    let path = &call.path;
    let mut source = Source::open(&call.source, stop)?;
    let size = source.size();
    if size == 0 {
        return Err(ImageCallError::Refused(format!("{} is empty", call.source)));
    }
    progress.total.store(size, Ordering::Relaxed);
    let file = NewFile::create(path).map_err(DiskError::os("create", path))?;
    let failed = ImageCallError::image(path);
    let own = file.fd().try_clone().map_err(DiskError::os("create", path))?;
    let mut target = Target::create(own, call.format, size).map_err(&failed)?;
    let (mut at, mut buffer) = (0, vec![0; CHUNK]);
    while at < size {
        if stop.load(Ordering::Relaxed) {
            return Err(failed(ImageError::Stopped));
        }
        let data = source.next_data(at, size)?;
        at = at.max(data - data % CHUNK as u64);
        if data < size {
            // At most the length of the buffer.
            let len = (size - at).min(CHUNK as u64) as usize;
            let part = buffer.get_mut(..len).unwrap_or_default();
            source.read(at, part)?;
            target.write(at, part).map_err(&failed)?;
            at += len as u64;
        } else {
            at = size;
        }
        progress.done.store(at, Ordering::Relaxed);
    }
    target.finish().map_err(&failed)?;
    Ok(file.publish().map_err(DiskError::os("store", path))?)
}
