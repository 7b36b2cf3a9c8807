//! Contract of a format towards the simulation.

use std::fmt::Debug;

use super::storage::{Bytes, SimFile};
use crate::ImageError;
use crate::format::Format;
use crate::map::Layout;

/// Format whose images the simulation writes.
pub(super) trait SimFormat: Format<File = SimFile> + Sized + 'static {
    /// Kind of an image.
    type Options: Copy + Debug;

    /// Creates an image.
    fn create(options: Self::Options) -> SimImage;

    async fn open(file: SimFile, options: Self::Options) -> Result<Self, ImageError>;

    /// Checks an image after a power cut, the `cut`-th one. Returns what its cells read as.
    ///
    /// # Errors
    /// The broken rule.
    fn check(image: &SimImage, options: Self::Options, cut: u64) -> Result<Vec<u64>, String>;
}

/// Image of a simulation. Requests read and write cells: sectors that have a number each.
pub(super) struct SimImage {
    pub(super) file: SimFile,
    pub(super) layout: Layout,
    /// First granule that requests use.
    pub(super) first: usize,
    /// Granules that requests may use.
    pub(super) granules: usize,
    /// Cells of a granule, at even distances: one a block, or more if blocks are not noted.
    pub(super) cells: usize,
    pub(super) has_below: bool,
    /// Numbers of the cells at first.
    pub(super) initial: Vec<u64>,
    /// Sectors that never change: a snapshot uses them.
    pub(super) fixed: Vec<(usize, Bytes)>,
}

impl SimImage {
    /// Returns the number of a cell of the layer below.
    pub(super) fn below(&self, granule: usize, cell: usize) -> u64 {
        if self.has_below { 1 << 40 | (granule * self.cells + cell) as u64 } else { 0 }
    }

    /// Returns the bytes from the begin of a granule to a cell.
    pub(super) fn cell_offset(&self, cell: usize) -> usize {
        (cell << self.layout.granule_bits) / self.cells
    }

    /// Returns the block of a cell.
    pub(super) fn block(&self, cell: usize) -> usize {
        self.cell_offset(cell) >> self.layout.block_bits
    }

    /// Returns the sector of a cell whose granule is at byte `offset` of the file.
    pub(super) fn sector(&self, offset: u64, cell: usize) -> usize {
        (offset as usize + self.cell_offset(cell)) / self.file.sector_bytes()
    }

    /// Checks the sectors that never change.
    pub(super) fn check_fixed(&self) -> Result<(), String> {
        let changed = |(sector, bytes): &&(usize, Bytes)| self.file.sector(*sector) != *bytes;
        match self.fixed.iter().find(changed) {
            Some((sector, _)) => Err(format!("sector {sector} of the snapshot has changed")),
            None => Ok(()),
        }
    }
}
