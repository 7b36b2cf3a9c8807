//! Space for blocks: places of former blocks, and behind the last one.

use std::io;

use super::VhdFormat;
use super::granule::GRANULE_BYTES;
use crate::growth::Growth;
use crate::map::Place;
use crate::vhd::SECTOR;
use crate::vhd::image::{FooterState, UNUSED};
use crate::{ImageError, ImageFile};

/// Alignment of data in new blocks.
const DATA_ALIGNMENT: u64 = 4096;

/// Space for blocks.
#[derive(Debug)]
pub(super) struct Space {
    /// First byte behind all blocks.
    frontier: u64,
    /// Size of the file in bytes. Its last sector is the footer's.
    len: u64,
    /// Offsets of free places of whole blocks, which may be holes.
    pub(super) free: Vec<u64>,
    pub(super) growth: Growth,
}

impl Space {
    /// Of a file of `len` bytes, for a disk of `size` bytes. No place is free yet.
    pub(super) fn new(len: u64, size: u64) -> Self {
        Self { frontier: len, len, free: Vec::new(), growth: Growth::of_disk(size) }
    }
}

impl<F: ImageFile + Clone> VhdFormat<F> {
    /// Finds the space that no block uses, behind the first block.
    ///
    /// # Errors
    /// [`ImageError::Corrupt`] if blocks overlap: a write would destroy another block.
    pub(super) async fn scan_space(&mut self) -> Result<(), ImageError> {
        let (entries, total) = (self.image.blocks()?.entries, self.total_bytes()?);
        let mut starts: Vec<u64> = self.new_blocks.values().copied().collect();
        for block in 0..entries {
            self.image.tables.check_stop()?;
            starts.extend(self.image.block(block).await?);
        }
        starts.sort_unstable();
        for range in self.image.metadata()? {
            let at = starts.partition_point(|start| start + total <= range.start);
            if let Some(start) = starts.get(at).filter(|start| **start < range.end) {
                let problem = "it is over tables or locators".into();
                return Err(ImageError::Corrupt { structure: "block", offset: *start, problem });
            }
        }
        // The beginning of an empty file is kept for a larger table.
        let end = self.space.len.saturating_sub(SECTOR);
        let mut frontier = starts.first().copied().unwrap_or(end);
        for &start in &starts {
            if start < frontier {
                let problem = format!("the blocks at byte {start} and before it overlap");
                let structure = "block allocation table";
                return Err(ImageError::Corrupt { structure, offset: start, problem });
            }
            let mut place = self.aligned(frontier)?;
            while place + total <= start {
                self.space.free.push(place);
                place = self.aligned(place + total)?;
            }
            frontier = start + total;
        }
        // The lowest place is used first.
        self.space.free.reverse();
        self.space.frontier = frontier;
        Ok(())
    }

    /// Returns the size of a block with its bitmap in bytes.
    pub(super) fn total_bytes(&self) -> Result<u64, ImageError> {
        let (block_bytes, bitmap_bytes) = self.block_sizes()?;
        Ok(block_bytes + bitmap_bytes)
    }

    /// Returns the first offset from `at` on for a block whose data is aligned.
    fn aligned(&self, at: u64) -> Result<u64, ImageError> {
        let bitmap_bytes = self.block_sizes()?.1;
        Ok((at + bitmap_bytes).next_multiple_of(DATA_ALIGNMENT) - bitmap_bytes)
    }

    /// Chooses a place for a block. The file may grow.
    pub(super) async fn choose(&mut self) -> Result<u64, ImageError> {
        let total = self.total_bytes()?;
        if let Some(start) = self.space.free.last().copied() {
            self.reserve(start, total).await?;
            self.space.free.pop();
            return Ok(start);
        }
        let mut start = self.aligned(self.space.frontier)?;
        if start + total + SECTOR > self.space.len {
            // The sector of the present footer is never data: if a power cut undoes the growth, no
            // guest has written what is the end of the file then.
            start = self.aligned(self.space.frontier.max(self.space.len))?;
            if start / SECTOR >= UNUSED.into() {
                return Err(ImageError::Full);
            }
            self.grow((start + total + SECTOR).next_multiple_of(DATA_ALIGNMENT)).await?;
        }
        self.space.frontier = start + total;
        Ok(start)
    }

    /// Makes the file at least `least` bytes long, with space for them and a footer at its end.
    async fn grow(&mut self, least: u64) -> Result<(), ImageError> {
        let step = self.space.growth.step(self.space.len);
        let mut len = least.max((self.space.len + step).next_multiple_of(DATA_ALIGNMENT));
        loop {
            match self.grow_to(len).await {
                Err(error) if error.is_full() && len > least => {
                    let more = (len - self.space.len) / 2;
                    len = least.max((self.space.len + more).next_multiple_of(DATA_ALIGNMENT));
                }
                other => return other,
            }
        }
    }

    async fn grow_to(&mut self, len: u64) -> Result<(), ImageError> {
        let (file, from) = (&self.image.tables.file, self.space.len);
        let grown = match file.allocate(from, len - from).await {
            // Without reservations, a write finds out that the storage is full.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.set_len(len).await,
            other => other,
        };
        match grown {
            Ok(()) => {}
            // A block device has one size.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(ImageError::Full);
            }
            Err(error) => return Err(ImageError::io("grow", from)(error)),
        }
        self.write_end_footer(len).await?;
        self.space.len = len;
        Ok(())
    }

    async fn write_end_footer(&mut self, len: u64) -> Result<(), ImageError> {
        let bytes = self.image.footer.bytes;
        self.image.tables.write(len - SECTOR, &bytes).await
    }

    /// Writes the footer where it is not as it must be: a power cut or a full storage has ended a
    /// growth. It never replaces data.
    pub(super) async fn repair_footers(&mut self) -> Result<(), ImageError> {
        let [at_end, copy] = self.image.footers().await?;
        if copy != FooterState::Same {
            let bytes = self.image.footer.bytes;
            self.image.tables.write(0, &bytes).await?;
        }
        if at_end == FooterState::Same {
            return Ok(());
        }
        let least = self.space.frontier.max(self.metadata_end()?) + SECTOR;
        match at_end {
            FooterState::Outdated
                if least <= self.space.len && self.space.len.is_multiple_of(SECTOR) =>
            {
                self.write_end_footer(self.space.len).await
            }
            // What is there may be data.
            _ => {
                self.grow(least.max(self.space.len + SECTOR).next_multiple_of(DATA_ALIGNMENT)).await
            }
        }
    }

    /// Returns the first byte behind headers, tables and locators.
    pub(super) fn metadata_end(&self) -> Result<u64, ImageError> {
        Ok(self.image.metadata()?.iter().map(|range| range.end).max().unwrap_or_default())
    }

    /// Makes sure that the storage has space for a granule, which may be a hole.
    pub(super) async fn reserve_space(&self, place: Place) -> Result<(), ImageError> {
        self.reserve(place.units() * SECTOR, GRANULE_BYTES).await
    }

    async fn reserve(&self, offset: u64, bytes: u64) -> Result<(), ImageError> {
        match self.image.tables.file.allocate(offset, bytes).await {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            other => other.map_err(ImageError::io("reserve space", offset)),
        }
    }
}
