//! Persistent bitmaps of other programs.

use super::image::Image;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Bytes of a directory entry before its variable fields.
const FIXED_BYTES: usize = 24;
/// Longest name of a bitmap in bytes, as in QEMU.
const MAX_NAME_BYTES: usize = 1023;
/// Most bytes of an entry's extra data; QEMU accepts none.
const MAX_EXTRA_BYTES: u64 = 1024;
/// Largest directory in bytes, as in QEMU.
const MAX_DIRECTORY_BYTES: u64 = 64 << 20;
/// Most entries of a bitmap's table, as in QEMU.
const MAX_TABLE_WORDS: u64 = 128 << 20;
/// Bits of an entry of a bitmap's table that contain an offset.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const IN_USE: u32 = 1;
const AUTO: u32 = 1 << 1;

/// Persistent bitmap of changed blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    /// Name. Bytes that are no text are replaced.
    pub name: String,
    /// Number of bytes of the disk that a bit stands for.
    pub granularity: u64,
    /// Whether a program did not store it completely.
    pub is_in_use: bool,
    /// Whether QEMU loads and updates it when it opens the image.
    pub is_auto: bool,
    /// Table of its clusters.
    pub(super) table: TableRange,
}

/// Directory of bitmaps, read one entry at a time.
#[derive(Debug)]
pub(super) struct BitmapDirectory {
    next: u64,
    left: u32,
    end: u64,
}

impl BitmapDirectory {
    /// Returns the place of the directory, if the image has valid bitmaps.
    pub(super) fn range<F: ImageFile>(image: &Image<F>) -> Option<TableRange> {
        let bitmaps = image.header.bitmaps?;
        Some(TableRange { offset: bitmaps.directory_offset, bytes: bitmaps.directory_bytes })
    }

    pub(super) fn new<F: ImageFile>(image: &Image<F>) -> Result<Self, ImageError> {
        let Some(range) = Self::range(image) else { return Ok(Self { next: 0, left: 0, end: 0 }) };
        let is_odd = !range.offset.is_multiple_of(image.header.cluster_bytes());
        if is_odd || range.bytes > MAX_DIRECTORY_BYTES {
            let problem = format!("it has {} bytes", range.bytes);
            let (structure, offset) = ("bitmap directory", range.offset);
            return Err(ImageError::Corrupt { structure, offset, problem });
        }
        let left = image.header.bitmaps.map_or(0, |bitmaps| bitmaps.count);
        Ok(Self { next: range.offset, left, end: range.offset.saturating_add(range.bytes) })
    }

    /// Returns the next bitmap, or `None` at the end.
    pub(super) async fn next<F: ImageFile>(
        &mut self,
        image: &mut Image<F>,
    ) -> Result<Option<Bitmap>, ImageError> {
        if self.left == 0 {
            return Ok(None);
        }
        image.tables.check_stop()?;
        let (structure, offset) = ("bitmap directory", self.next);
        let corrupt = |problem| ImageError::Corrupt { structure, offset, problem };
        let mut fixed = [0; FIXED_BYTES];
        image.tables.read(structure, offset, &mut fixed).await?;
        let number = |at: usize, bytes: usize| {
            fixed[at..at + bytes].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let (name_bytes, extra_bytes) = (number(18, 2) as usize, number(20, 4));
        let (words, granularity_bits) = (number(8, 4), fixed[17]);
        let fits = name_bytes <= MAX_NAME_BYTES && extra_bytes <= MAX_EXTRA_BYTES;
        if !fits || words > MAX_TABLE_WORDS || granularity_bits > 31 {
            return Err(corrupt("a size in the entry is out of range".into()));
        }
        let mut name = vec![0; name_bytes];
        let name_offset = offset.saturating_add(FIXED_BYTES as u64 + extra_bytes);
        image.tables.read(structure, name_offset, &mut name).await?;
        let bytes = (FIXED_BYTES as u64 + extra_bytes + name_bytes as u64).next_multiple_of(8);
        self.next = offset.saturating_add(bytes);
        self.left -= 1;
        if self.next > self.end {
            return Err(corrupt("the entry ends behind the directory".into()));
        }
        let flags = number(12, 4) as u32;
        Ok(Some(Bitmap {
            name: String::from_utf8_lossy(&name).into_owned(),
            granularity: 1 << granularity_bits,
            is_in_use: flags & IN_USE != 0,
            is_auto: flags & AUTO != 0,
            table: TableRange { offset: number(0, 8), bytes: words * 8 },
        }))
    }
}

impl<F: ImageFile> Image<F> {
    /// Returns the first `limit` persistent bitmaps.
    ///
    /// # Errors
    /// The bitmap directory is damaged, or the file fails.
    pub async fn bitmaps(&mut self, limit: usize) -> Result<Vec<Bitmap>, ImageError> {
        let (mut directory, mut found) = (BitmapDirectory::new(self)?, Vec::new());
        while found.len() < limit
            && let Some(bitmap) = directory.next(self).await?
        {
            found.push(bitmap);
        }
        Ok(found)
    }

    /// Returns the offset of a cluster of a bitmap, or `None` if all its bits are equal.
    pub(super) async fn bitmap_cluster(
        &mut self,
        table: TableRange,
        index: u64,
    ) -> Result<Option<u64>, ImageError> {
        let offset = self.tables.word("bitmap table", table, index).await? & OFFSET_MASK;
        Ok((offset != 0).then_some(offset))
    }
}
