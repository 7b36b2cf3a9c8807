//! Growth of the disk: new entries of the BAT, then the header's number of entries, then the size in
//! the footers. Each step leaves a valid image of the former size.

use std::collections::BTreeMap;

use super::VhdFormat;
use super::granule::{BITS_BYTES, GRANULE_BITS, GRANULE_BYTES};
use crate::vhd::fields::put;
use crate::vhd::image::UNUSED;
use crate::vhd::{MAX_DISK_BYTES, SECTOR};
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> VhdFormat<F> {
    /// Makes the disk larger, and that durable. What is new reads as zero. `below_len`: bytes of the
    /// parent, 0 if there is none. The image has no map, and its journal is empty.
    ///
    /// # Errors
    /// [`ImageError::Resize`] if the size is not possible, or storage fails or is full. Then the
    /// size is as before.
    pub async fn resize(&mut self, size: u64, below_len: u64) -> Result<(), ImageError> {
        let old = self.image.footer.size;
        self.check_size(size, below_len)?;
        if size == old {
            return Ok(());
        }
        let entries = size.div_ceil(self.block_sizes()?.0);
        if entries > self.image.blocks()?.entries {
            self.grow_table(entries).await?;
        }
        self.clear_tail(old).await?;
        self.sync().await?;
        self.image.footer.set_size(size);
        let bytes = self.image.footer.bytes;
        // The copy holds; the other one follows.
        self.image.tables.write(0, &bytes).await?;
        self.sync().await?;
        let end = self.image.tables.len() - SECTOR;
        self.image.tables.write(end, &bytes).await?;
        self.sync().await
    }

    fn check_size(&self, size: u64, below_len: u64) -> Result<(), ImageError> {
        let old = self.image.footer.size;
        let refuse = |problem: String| Err(ImageError::Resize { problem });
        if size < old {
            return refuse(format!("it has {old} bytes and cannot shrink to {size}"));
        }
        if !size.is_multiple_of(SECTOR) || size > MAX_DISK_BYTES {
            let rule = format!("at most 2,040 GiB, in multiples of {SECTOR} bytes");
            return refuse(format!("a disk in a VHD has {rule}, not {size} bytes"));
        }
        if size > old && below_len > old {
            let next = "merge the two, or copy them to a new image";
            return refuse(format!(
                "its parent is longer, and would appear in the new part; {next}"
            ));
        }
        Ok(())
    }

    /// Adds entries to the BAT, whose place must be free.
    async fn grow_table(&mut self, entries: u64) -> Result<(), ImageError> {
        let header = self.image.blocks()?;
        let (old, table, end) = (header.entries, header.table_offset, header.table_end());
        let new_end = (table + entries * 4).next_multiple_of(SECTOR);
        let mut room = self.image.tables.len() - SECTOR;
        for range in self.image.metadata()? {
            if range.start >= end {
                room = room.min(range.start);
            }
        }
        for block in 0..old {
            room = self.image.block(block).await?.map_or(room, |start| room.min(start));
        }
        if new_end > room || self.image.batmap.is_some() {
            let problem = "its table of blocks has no room for more; copy it to a new VHD, which has \
                           room for 2,040 GiB";
            return Err(ImageError::Resize { problem: problem.into() });
        }
        // The largest table has 16 MiB.
        let bytes = vec![0xff; ((entries - old) * 4) as usize];
        self.image.tables.write(table + old * 4, &bytes).await?;
        self.sync().await?;
        // The largest table has 4,177,920 entries.
        let count = entries as u32;
        let header = self.image.header.as_mut();
        let header = header.ok_or_else(|| ImageError::header("a fixed image has no blocks"))?;
        let (offset, sector) = (header.offset, header.set_entries(count).to_vec());
        self.image.tables.write(offset, &sector).await?;
        self.image.tables.forget();
        self.sync().await
    }

    /// Clears what is stored behind the end of the disk: bits of later granules and blocks, and the
    /// rest of the last granule.
    async fn clear_tail(&mut self, old: u64) -> Result<(), ImageError> {
        let block_bytes = self.block_sizes()?.0;
        let last = old.div_ceil(block_bytes);
        let mut behind = BTreeMap::new();
        for block in last..self.image.blocks()?.entries {
            if self.image.entry(block).await? != UNUSED {
                behind.insert(block, UNUSED);
            }
        }
        self.write_entries(&behind).await?;
        let Some(start) = self.image.block(old / block_bytes).await? else { return Ok(()) };
        let per_block = (block_bytes >> GRANULE_BITS) as usize;
        let within = (old % block_bytes) as usize;
        let first = within.div_ceil(GRANULE_BYTES as usize);
        let data = start + self.block_sizes()?.1;
        let bitmap = self.image.bitmap(start).await?.to_vec();
        let mut new = bitmap.clone();
        for granule in first..per_block {
            put(&mut new, granule * BITS_BYTES, &[0; BITS_BYTES]);
        }
        self.image.clear_batmap().await?;
        self.image.tables.write_changes(start, &bitmap, &new).await?;
        // A set bit of the last granule stays, and its sector becomes zero.
        self.zero(data + within as u64, block_bytes - within as u64).await
    }
}
