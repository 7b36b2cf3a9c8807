//! VHDs under the simulation, made byte by byte.

use super::format::{SimFormat, SimImage};
use super::storage::SimFile;
use crate::format::{Access, Format};
use crate::vhd::{Image, OpenOptions, VhdFormat, sample};
use crate::{ImageError, run_now};

const SECTOR: usize = 512;
/// Sectors and granules of a block of 512 KiB.
const BLOCK_SECTORS: usize = 1024;
const BLOCK_GRANULES: usize = 8;
const GRANULE_SECTORS: usize = 128;
/// Cells of a granule.
const CELLS: usize = 4;

/// Kind of a VHD.
#[derive(Clone, Copy, Debug)]
pub(super) struct VhdOptions {
    /// Size of the disk in bytes.
    pub(super) size: u64,
    /// Bytes of bits of the granules that are stored. Others are absent.
    pub(super) stored: &'static [(usize, [u8; 16])],
    pub(super) first: usize,
    pub(super) granules: usize,
    pub(super) has_below: bool,
    /// Blocks by which the file may grow.
    pub(super) room: usize,
}

type Opened = VhdFormat<SimFile>;

/// Returns the bytes of a new image. Each stored sector has its own number.
fn content(options: VhdOptions) -> Vec<u8> {
    let mut blocks = vec![None; (options.size as usize).div_ceil(BLOCK_SECTORS * SECTOR)];
    for (granule, bits) in options.stored {
        let (block, within) = (granule / BLOCK_GRANULES, granule % BLOCK_GRANULES);
        let (bitmap, data) =
            blocks[block].get_or_insert_with(|| (vec![0; SECTOR], vec![0; BLOCK_SECTORS * SECTOR]));
        bitmap[within * 16..][..16].copy_from_slice(bits);
        for sector in (0..GRANULE_SECTORS).filter(|at| bits[at / 8] >> (7 - at % 8) & 1 == 1) {
            let number = 1 << 41 | (granule * GRANULE_SECTORS + sector) as u64;
            let at = (within * GRANULE_SECTORS + sector) * SECTOR;
            data[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
    }
    sample::image(options.size, (BLOCK_SECTORS * SECTOR) as u32, options.has_below, &blocks)
}

impl SimFormat for Opened {
    type Options = VhdOptions;

    fn create(options: VhdOptions) -> SimImage {
        let content = content(options);
        let file = SimFile::new(SECTOR, &content, options.room * (BLOCK_SECTORS + 24));
        let measure = run_now(<Self as SimFormat>::open(file.direct(), options)).unwrap();
        let VhdOptions { first, granules, has_below, .. } = options;
        let (layout, cells) = (measure.layout(), CELLS);
        let (initial, fixed) = Default::default();
        let mut image =
            SimImage { file, layout, first, granules, cells, has_below, initial, fixed };
        let mut disk = run_now(Image::open(image.file.direct(), Access::Read)).unwrap();
        image.initial = values(&image, &mut disk).unwrap();
        image
    }

    async fn open(file: SimFile, options: VhdOptions) -> Result<Self, ImageError> {
        let VhdOptions { has_below, size, .. } = options;
        let opened = OpenOptions { has_below, ..OpenOptions::new(size) };
        let mut format = Self::open(file, opened).await?;
        format.set_growth(1);
        Ok(format)
    }

    fn check(image: &SimImage, _: VhdOptions, _: u64) -> Result<Vec<u64>, String> {
        let disk = run_now(Image::open(image.file.direct(), Access::Write));
        let mut disk = disk.map_err(|error| error.to_string())?;
        let report = run_now(disk.check()).map_err(|error| error.to_string())?;
        if report.errors > 0 {
            return Err(format!("{:?}", report.faults));
        }
        values(image, &mut disk).map_err(|error| error.to_string())
    }
}

/// Returns what all cells read as.
fn values(image: &SimImage, disk: &mut Image<SimFile>) -> Result<Vec<u64>, ImageError> {
    let value = |at| {
        let (granule, cell) = (at / CELLS, at % CELLS);
        let start = ((image.first + granule) << image.layout.granule_bits) as u64;
        let found = run_now(disk.lookup(start + image.cell_offset(cell) as u64))?.host_offset;
        let stored = found.map(|offset| image.file.value(offset as usize / SECTOR));
        Ok(stored.unwrap_or_else(|| image.below(granule, cell)))
    };
    (0..image.granules * CELLS).map(value).collect()
}
