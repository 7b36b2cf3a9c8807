//! Refcounts: the number of references to each cluster of the file.

use super::header::Header;
use super::image::Image;
use crate::tables::SLICE_BYTES;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Bits of an entry of the refcount table that contain an offset.
const OFFSET_MASK: u64 = 0xffff_ffff_ffff_fe00;

/// Layout of an image's refcounts. Each entry of the refcount table names a block, a cluster of
/// refcounts of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refcounts {
    order: u32,
    per_block: u64,
}

impl Refcounts {
    /// Returns the layout in an image.
    pub fn of(header: &Header) -> Self {
        Self { order: header.refcount_order, per_block: header.refcounts_per_block() }
    }

    /// Returns the number of refcounts in a block.
    pub fn per_block(self) -> u64 {
        self.per_block
    }

    /// Returns the number of refcounts in `bytes` bytes of a block.
    pub fn in_bytes(self, bytes: u64) -> u64 {
        (bytes * 8) >> self.order
    }

    /// Returns the largest refcount.
    pub fn max(self) -> u64 {
        // Widths are 1 to 64 bits.
        u64::MAX >> (64 - (1 << self.order))
    }

    /// Returns refcount `index` of a part of a block, or 0 if the part ends before.
    pub fn get(self, part: &[u8], index: usize) -> u64 {
        match self.width_bytes() {
            Some(width) => {
                let value = index.checked_mul(width).and_then(|at| part.get(at..at + width));
                value.unwrap_or_default().iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
            }
            None => {
                let (at, shift) = self.place_in_bytes(index);
                part.get(at).map_or(0, |byte| u64::from(byte >> shift) & self.max())
            }
        }
    }

    /// Sets refcount `index` of a part of a block. Returns false, and changes nothing, if the part
    /// ends before or the value is above [`Self::max`].
    #[must_use]
    pub fn set(self, part: &mut [u8], index: usize, value: u64) -> bool {
        if value > self.max() {
            return false;
        }
        match self.width_bytes() {
            Some(width) => {
                let place = index.checked_mul(width).and_then(|at| part.get_mut(at..at + width));
                let bytes = value.to_be_bytes();
                place.map(|place| place.copy_from_slice(&bytes[8 - width..])).is_some()
            }
            None => {
                let (at, shift) = self.place_in_bytes(index);
                let Some(byte) = part.get_mut(at) else { return false };
                // The value has at most 4 bits.
                let (mask, value) = ((self.max() as u8) << shift, (value as u8) << shift);
                *byte = *byte & !mask | value;
                true
            }
        }
    }

    /// Returns the width of a refcount in bytes, if it has at least one.
    fn width_bytes(self) -> Option<usize> {
        self.order.checked_sub(3).map(|shift| 1 << shift)
    }

    /// Returns the byte and the shift in it of a refcount of less than 8 bits.
    fn place_in_bytes(self, index: usize) -> (usize, usize) {
        let in_byte = 8 >> self.order;
        (index / in_byte, (index % in_byte) << self.order)
    }
}

impl<F: ImageFile> Image<F> {
    /// Returns the number of references to a cluster of the file, by its number.
    ///
    /// # Errors
    /// The refcount table is damaged, or the file fails.
    pub async fn refcount(&mut self, cluster: u64) -> Result<u64, ImageError> {
        let refcounts = Refcounts::of(&self.header);
        let (block, index) = (cluster / refcounts.per_block, cluster % refcounts.per_block);
        let Some(block) = self.refcount_block(block).await? else { return Ok(0) };
        let table = self.block_range(block);
        let at = (index << refcounts.order) / 8;
        let (slice, _) = self.tables.slice("refcount block", table, at).await?;
        // A slice has at most 524,288 refcounts.
        Ok(refcounts.get(slice, (index % refcounts.in_bytes(SLICE_BYTES)) as usize))
    }

    /// Returns the offset of a refcount block by its number. `None` means that all its refcounts
    /// are 0.
    pub(super) async fn refcount_block(&mut self, block: u64) -> Result<Option<u64>, ImageError> {
        let (structure, table) = ("refcount table", self.header.refcount_table);
        if block >= table.words() {
            return Ok(None);
        }
        let word = self.tables.word(structure, table, block).await?;
        let offset = word & OFFSET_MASK;
        let problem = if offset != word || !offset.is_multiple_of(self.header.cluster_bytes()) {
            format!("entry {block} is {word:#x}, not the offset of a cluster")
        } else if !self.tables.contains(offset).await? {
            format!("entry {block} refers to {offset:#x}, behind the end of the file")
        } else {
            return Ok((offset != 0).then_some(offset));
        };
        Err(ImageError::Corrupt { structure, offset: table.offset + block * 8, problem })
    }

    pub(super) fn block_range(&self, block: u64) -> TableRange {
        TableRange { offset: block, bytes: self.header.cluster_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_refcount_reads_back_and_neighbours_stay(
            order in 0u32..=6, index in 0usize..64, value: u64, fill: u8,
        ) {
            let refcounts = Refcounts { order, per_block: 512 };
            let mut part = vec![fill; 512];
            let before: Vec<_> = (0..64).map(|index| refcounts.get(&part, index)).collect();
            let value = value & refcounts.max();
            prop_assert!(refcounts.set(&mut part, index, value));
            for (other, &kept) in before.iter().enumerate() {
                let expected = if other == index { value } else { kept };
                prop_assert_eq!(refcounts.get(&part, other), expected);
            }
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let refcounts = Refcounts { order: 1, per_block: 512 };
        let mut part = [0; 2];
        assert!(!refcounts.set(&mut part, 0, 4) && !refcounts.set(&mut part, 8, 1));
        assert!(refcounts.set(&mut part, 1, 3));
        assert_eq!((part, refcounts.get(&part, 99)), ([0b1100, 0], 0));
    }
}
