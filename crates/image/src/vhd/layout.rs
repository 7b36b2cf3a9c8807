//! Layout of the file: what lies where, and where no block can be.

use std::ops::Range;

use super::SECTOR;
use super::header::HEADER_BYTES;
use super::image::Image;
use crate::{ImageError, ImageFile};

impl<F: ImageFile> Image<F> {
    /// Returns why no block can be at byte `start`.
    pub(super) async fn misplaced(&mut self, start: u64) -> Result<Option<String>, ImageError> {
        let header = self.blocks()?;
        let end = start + header.bitmap_bytes() + header.block_bytes;
        let headers = header.offset..header.offset + HEADER_BYTES as u64;
        let tables = [0..SECTOR, headers, header.table_offset..header.table_end()];
        if tables.iter().any(|table| start < table.end && table.start < end) {
            return Ok(Some(format!("the block at byte {start} is over a header or the table")));
        }
        if !self.tables.contains(end - 1).await? {
            let len = self.tables.len();
            return Ok(Some(format!(
                "the block at byte {start} ends behind the file's {len} bytes"
            )));
        }
        Ok(None)
    }

    /// Returns the places of header, table, batmap and locators.
    pub(super) fn metadata(&self) -> Result<Vec<Range<u64>>, ImageError> {
        let header = self.blocks()?;
        let mut ranges = vec![
            0..SECTOR,
            header.offset..header.offset + HEADER_BYTES as u64,
            header.table_offset..header.table_end(),
        ];
        ranges.extend(self.batmap.as_ref().map(|batmap| header.table_end()..batmap.end()));
        let is_inside = |range: &Range<u64>| range.end <= self.tables.len();
        let locators = header
            .locators
            .iter()
            .filter(|one| one.len > 0)
            .map(|locator| locator.offset..locator.offset.saturating_add(locator.len.into()));
        ranges.extend(locators.filter(is_inside));
        Ok(ranges)
    }

    /// Checks that the data of all blocks is at multiples of `alignment` bytes.
    ///
    /// # Errors
    /// [`ImageError::Unsupported`], or as [`Self::lookup`].
    pub async fn check_alignment(&mut self, alignment: u64) -> Result<(), ImageError> {
        let bitmap_bytes = self.blocks()?.bitmap_bytes();
        for block in 0..self.blocks()?.entries {
            let start = self.block(block).await?.unwrap_or_default();
            if start > 0 && !(start + bitmap_bytes).is_multiple_of(alignment) {
                let feature = format!(
                    "block {block} at byte {start}, whose data is not at a multiple of the storage's \
                     {alignment} bytes"
                );
                let next = "serve it with cache=writeback, or copy it to a new image";
                return Err(ImageError::Unsupported { feature, next });
            }
        }
        Ok(())
    }
}
