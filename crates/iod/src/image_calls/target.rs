//! A new image file that a disk is written to.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use image::format::Backing;
use image::qcow2::Qcow2Format;
use image::vhd::VhdFormat;
use image::{ImageError, ImageFile, ImageWriter, PlainFile, run_now};
use model::image::ImageFormat;

/// Bytes of a raw image that are stored or left out together.
const BLOCK: usize = 4096;
/// Block of zeroes. A comparison of memory is faster than a look at each byte.
const ZEROES: [u8; BLOCK] = [0; BLOCK];

/// New image.
pub(super) enum Target {
    Raw(PlainFile),
    Qcow2(Box<ImageWriter<Qcow2Format<Arc<PlainFile>>>>),
    Vhd(Box<ImageWriter<VhdFormat<Arc<PlainFile>>>>),
}

impl Target {
    /// Creates an image of a disk of `size` bytes in an empty file.
    pub(super) fn create(
        file: OwnedFd,
        format: ImageFormat,
        size: u64,
    ) -> Result<Self, ImageError> {
        let file = PlainFile::new(file);
        match format {
            ImageFormat::Raw => {
                let sized = file.set_len(size);
                run_now(async { sized.await.map_err(ImageError::io("size", 0)) })?;
                Ok(Self::Raw(file))
            }
            ImageFormat::Qcow2 => Self::qcow2(file, size, None),
            ImageFormat::Vhd => {
                let writer = run_now(ImageWriter::create_vhd(Arc::new(file), size))?;
                Ok(Self::Vhd(Box::new(writer)))
            }
        }
    }

    /// Creates a qcow2 image over another one in an empty file.
    pub(super) fn create_over(
        file: OwnedFd,
        size: u64,
        backing: Backing,
    ) -> Result<Self, ImageError> {
        Self::qcow2(PlainFile::new(file), size, Some(backing))
    }

    fn qcow2(file: PlainFile, size: u64, backing: Option<Backing>) -> Result<Self, ImageError> {
        let writer = run_now(ImageWriter::create_qcow2(Arc::new(file), size, backing))?;
        Ok(Self::Qcow2(Box::new(writer)))
    }

    /// Writes data at an offset, a multiple of a cluster. No cluster may be written twice.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ImageError> {
        let file = match self {
            Self::Qcow2(writer) => return run_now(writer.write(offset, data)),
            Self::Vhd(writer) => return run_now(writer.write(offset, data)),
            Self::Raw(file) => file,
        };
        write_sparse(file, offset, data)
    }

    /// Completes the image.
    pub(super) fn finish(self) -> Result<(), ImageError> {
        match self {
            Self::Raw(_) => Ok(()),
            Self::Qcow2(writer) => run_now((*writer).finish()),
            Self::Vhd(writer) => run_now((*writer).finish()),
        }
    }
}

/// Writes data to a file that has zeroes there. Blocks of zeroes take no space.
pub(super) fn write_sparse(file: &PlainFile, offset: u64, data: &[u8]) -> Result<(), ImageError> {
    let is_zero = |block: &[u8]| ZEROES.get(..block.len()) == Some(block);
    let blocks: Vec<_> = (offset..).step_by(BLOCK).zip(data.chunks(BLOCK)).collect();
    for run in blocks.chunk_by(|(_, one), (_, next)| is_zero(one) == is_zero(next)) {
        let Some((at, _)) = run.first().filter(|(_, first)| !is_zero(first)) else { continue };
        let len = run.iter().map(|(_, block)| block.len()).sum::<usize>();
        // Within the data.
        let skip = (at - offset) as usize;
        let part = data.get(skip..skip + len).unwrap_or_default();
        run_now(async { file.write_at(*at, part).await.map_err(ImageError::io("write", *at)) })?;
    }
    Ok(())
}
