//! Lookup: where the bytes of the disk are.

use super::SECTOR;
use super::batmap::has_bit;
use super::image::Image;
use crate::extent::push;
use crate::{Extent, ExtentKind, ImageError, ImageFile};

/// Range of the disk with one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset of the first byte in the file. `None` if the image does not have the range: its parent
    /// may, and without a parent it is zero.
    pub host_offset: Option<u64>,
    /// Number of bytes. The neighbours may be alike.
    pub bytes: u64,
}

impl<F: ImageFile> Image<F> {
    /// Returns where the bytes from `offset` are. The run ends at the end of the block at the latest.
    ///
    /// # Errors
    /// `offset` is behind the end of the disk, an entry is damaged, or the file fails.
    pub async fn lookup(&mut self, offset: u64) -> Result<Run, ImageError> {
        let size = self.footer.size;
        if offset >= size {
            return Err(ImageError::Outside { offset, size });
        }
        let Some(header) = &self.header else {
            return Ok(Run { host_offset: Some(offset), bytes: size - offset });
        };
        let (block_bytes, bitmap_bytes) = (header.block_bytes, header.bitmap_bytes());
        let within = offset % block_bytes;
        let in_block = (block_bytes - within).min(size - offset);
        let Some(start) = self.block(offset / block_bytes).await? else {
            return Ok(Run { host_offset: None, bytes: in_block });
        };
        let bitmap = self.bitmap(start).await?;
        let first = within / SECTOR;
        let is_stored = has_bit(bitmap, first);
        let end = (first..block_bytes / SECTOR).find(|at| has_bit(bitmap, *at) != is_stored);
        let end = end.map_or(block_bytes, |end| end * SECTOR);
        let host_offset = is_stored.then_some(start + bitmap_bytes + within);
        Ok(Run { host_offset, bytes: (end - within).min(in_block) })
    }

    /// Returns at most `limit` extents from `start` on, in order and without gaps. To go on, call
    /// again with the end of the last one. The result is empty if `start` is the end of the disk.
    ///
    /// # Errors
    /// As [`Self::lookup`], or the caller has requested an end.
    pub async fn map(&mut self, start: u64, limit: usize) -> Result<Vec<Extent>, ImageError> {
        let (mut extents, mut at) = (Vec::new(), start);
        while at < self.footer.size {
            self.tables.check_stop()?;
            let Run { host_offset, bytes } = self.lookup(at).await?;
            let data = |host_offset| ExtentKind::Data { host_offset };
            let kind = host_offset.map_or(ExtentKind::Unallocated, data);
            if !push(&mut extents, Extent { start: at, bytes, kind }, limit) {
                break;
            }
            at += bytes;
        }
        Ok(extents)
    }
}
