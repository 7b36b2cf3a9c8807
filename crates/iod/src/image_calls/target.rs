//! A new image file that a disk is written to.

use std::ops::Range;
use std::sync::Arc;

use image::format::Backing;
use image::qcow2::Qcow2Format;
use image::vhd::{self, VhdFormat};
use image::{ImageError, ImageFile, ImageWriter, PlainFile, Presence, run_now};

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

/// Format of a new image, with its reference to the image below.
pub(super) enum TargetFormat {
    Raw,
    Qcow2(Option<Backing>),
    /// Over another disk, even without a reference to it.
    Qcow2Over(Option<Backing>),
    /// Also its identity, if images over it know one.
    Vhd(Option<vhd::Parent>, Option<[u8; 16]>),
}

impl Target {
    /// Creates an image of a disk of `size` bytes in an empty file.
    pub(super) fn create(
        file: PlainFile,
        format: TargetFormat,
        size: u64,
    ) -> Result<Self, ImageError> {
        match format {
            TargetFormat::Raw => {
                let sized = file.set_len(size);
                run_now(async { sized.await.map_err(ImageError::io("size", 0)) })?;
                Ok(Self::Raw(file))
            }
            TargetFormat::Qcow2(backing) => {
                let writer = run_now(ImageWriter::create_qcow2(Arc::new(file), size, backing))?;
                Ok(Self::Qcow2(Box::new(writer)))
            }
            TargetFormat::Qcow2Over(backing) => {
                let writer = ImageWriter::create_qcow2_over(Arc::new(file), size, backing);
                Ok(Self::Qcow2(Box::new(run_now(writer)?)))
            }
            TargetFormat::Vhd(parent, unique_id) => {
                let options = match parent {
                    Some(parent) => vhd::CreateOptions::differencing(size, parent),
                    None => vhd::CreateOptions::dynamic(size),
                };
                let options = vhd::CreateOptions { unique_id, ..options };
                let writer = run_now(ImageWriter::create_vhd(Arc::new(file), &options))?;
                Ok(Self::Vhd(Box::new(writer)))
            }
        }
    }

    /// Returns the bytes of which the image says together whether they are present.
    pub(super) fn unit_bytes(&self) -> usize {
        match self {
            Self::Raw(_) => BLOCK,
            Self::Qcow2(writer) => writer.unit_bytes(),
            Self::Vhd(writer) => writer.unit_bytes(),
        }
    }

    /// Stores units of which these are present. The others are zeroes.
    pub(super) fn write_units(
        &mut self,
        offset: u64,
        data: &[u8],
        presence: &[Presence],
    ) -> Result<(), ImageError> {
        let file = match self {
            Self::Qcow2(writer) => return run_now(writer.write_units(offset, data, presence)),
            Self::Vhd(writer) => return run_now(writer.write_units(offset, data, presence)),
            Self::Raw(file) => file,
        };
        for (skip, part) in data_runs(data.len(), presence, BLOCK) {
            let (at, part) = (offset + skip as u64, data.get(part).unwrap_or_default());
            run_now(async { file.write_at(at, part).await.map_err(ImageError::io("write", at)) })?;
        }
        Ok(())
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

/// Returns the ranges of `len` bytes that consist of present units, each with its start.
pub(super) fn data_runs(
    len: usize,
    presence: &[Presence],
    unit: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = 0;
    let runs = presence.chunk_by(|one, next| one == next).map(move |run| {
        let start = at;
        at = len.min(start + run.len() * unit);
        (run.first() == Some(&Presence::Data), start..at)
    });
    runs.filter(|(is_data, _)| *is_data).map(|(_, range)| (range.start, range))
}
