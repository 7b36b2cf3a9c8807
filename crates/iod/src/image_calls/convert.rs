//! Copies of disks in new image files.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use disk::DiskError;
use image::qcow2::Qcow2Format;
use image::vhd::VhdFormat;
use image::{ImageError, ImageFile, ImageWriter, PlainFile, run_now};
use model::image::{ImageConvert, ImageFormat};

use super::ImageCallError;
use super::new_file::NewFile;
use super::source::Source;

/// Bytes that are copied together, a multiple of every cluster.
const CHUNK: usize = 2 << 20;
/// Bytes of a raw image that are stored or left out together.
const BLOCK: usize = 4096;

/// Progress of a copy.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
}

/// New image.
enum Target {
    Raw(PlainFile),
    Qcow2(Box<ImageWriter<Qcow2Format<Arc<PlainFile>>>>),
    Vhd(Box<ImageWriter<VhdFormat<Arc<PlainFile>>>>),
}

impl Target {
    fn create(file: OwnedFd, format: ImageFormat, size: u64) -> Result<Self, ImageError> {
        let file = PlainFile::new(file);
        match format {
            ImageFormat::Raw => {
                let sized = file.set_len(size);
                run_now(async { sized.await.map_err(ImageError::io("size", 0)) })?;
                Ok(Self::Raw(file))
            }
            ImageFormat::Qcow2 => {
                let writer = run_now(ImageWriter::create_qcow2(Arc::new(file), size))?;
                Ok(Self::Qcow2(Box::new(writer)))
            }
            ImageFormat::Vhd => {
                let writer = run_now(ImageWriter::create_vhd(Arc::new(file), size))?;
                Ok(Self::Vhd(Box::new(writer)))
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ImageError> {
        let file = match self {
            Self::Qcow2(writer) => return run_now(writer.write(offset, data)),
            Self::Vhd(writer) => return run_now(writer.write(offset, data)),
            Self::Raw(file) => file,
        };
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let blocks: Vec<_> = (offset..).step_by(BLOCK).zip(data.chunks(BLOCK)).collect();
        for run in blocks.chunk_by(|(_, one), (_, next)| is_zero(one) == is_zero(next)) {
            let Some((at, _)) = run.first().filter(|(_, first)| !is_zero(first)) else { continue };
            let len = run.iter().map(|(_, block)| block.len()).sum::<usize>();
            // Within the data.
            let skip = (at - offset) as usize;
            let part = data.get(skip..skip + len).unwrap_or_default();
            run_now(async {
                file.write_at(*at, part).await.map_err(ImageError::io("write", *at))
            })?;
        }
        Ok(())
    }

    fn finish(self) -> Result<(), ImageError> {
        match self {
            Self::Raw(_) => Ok(()),
            Self::Qcow2(writer) => run_now((*writer).finish()),
            Self::Vhd(writer) => run_now((*writer).finish()),
        }
    }
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
