//! A VHD that arrives as a stream: what its first bytes say about the rest.

use super::fields::u32_at;
use super::footer::{DiskType, FOOTER_BYTES, Footer, has_cookie};
use super::header::{HEADER_BYTES, Header};
use super::image::UNUSED;
use super::{MAX_BLOCK_BYTES, SECTOR};
use crate::ImageError;

/// Largest offset of the dynamic header in bytes. No program puts it farther back than this.
const MAX_HEADER_OFFSET: u64 = 1 << 30;

/// Beginning of an image with blocks.
#[derive(Debug)]
pub struct StreamHead {
    footer: Footer,
}

/// Places of the table and the blocks.
#[derive(Debug)]
pub struct StreamTable {
    footer: Footer,
    header: Header,
}

/// Block of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamBlock {
    /// First sector of its bitmap in the stream.
    sector: u32,
    /// Number of the block on the disk.
    number: u32,
}

impl StreamHead {
    /// Bytes of the beginning, and of the footer at the end.
    pub const BYTES: usize = FOOTER_BYTES;

    /// Parses the first bytes of a stream. `None` if they are those of a fixed image: a part of its
    /// disk.
    ///
    /// # Errors
    /// As [`Footer::parse`].
    pub fn parse(bytes: &[u8; FOOTER_BYTES]) -> Result<Option<Self>, ImageError> {
        if !has_cookie(bytes) {
            return Ok(None);
        }
        let footer = Footer::parse(bytes)?;
        Ok((footer.disk_type != DiskType::Fixed).then_some(Self { footer }))
    }

    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.footer.size
    }

    /// Returns whether the image has a parent.
    pub fn is_differencing(&self) -> bool {
        self.footer.disk_type == DiskType::Differencing
    }

    /// Returns the offset and the length of the dynamic header in bytes.
    ///
    /// # Errors
    /// [`ImageError::Header`] if the header cannot be there.
    pub fn header_place(&self) -> Result<(u64, usize), ImageError> {
        let offset = self.footer.data_offset;
        if !offset.is_multiple_of(SECTOR) || !(SECTOR..=MAX_HEADER_OFFSET).contains(&offset) {
            return Err(ImageError::header(format!("the dynamic header is at byte {offset}")));
        }
        Ok((offset, HEADER_BYTES))
    }

    /// Parses the dynamic header.
    ///
    /// # Errors
    /// [`ImageError::Header`], [`ImageError::Unsupported`].
    pub fn into_table(self, header: Vec<u8>) -> Result<StreamTable, ImageError> {
        let (offset, _) = self.header_place()?;
        let header = Header::parse(header, offset, &self.footer, u64::MAX)?;
        if header.table_offset < offset {
            let problem = "its block allocation table lies before its header, so it cannot be \
                           received as a stream";
            return Err(ImageError::header(problem));
        }
        Ok(StreamTable { footer: self.footer, header })
    }
}

impl StreamTable {
    /// Returns the offset of the table in the stream, and the length of what the disk needs of it,
    /// in bytes.
    pub fn place(&self) -> (u64, usize) {
        let entries = self.footer.size.div_ceil(self.header.block_bytes);
        // A disk has at most 4,177,920 blocks.
        (self.header.table_offset, (entries * 4) as usize)
    }

    /// Returns the bytes of a block of the disk.
    pub fn block_bytes(&self) -> u64 {
        self.header.block_bytes
    }

    /// Returns the bytes of the bitmap before each block.
    pub fn bitmap_bytes(&self) -> usize {
        // At most 64 KiB.
        self.header.bitmap_bytes().min(MAX_BLOCK_BYTES) as usize
    }

    /// Returns the first byte behind the table.
    pub fn end(&self) -> u64 {
        self.header.table_end()
    }

    /// Returns the blocks in the order of the stream.
    ///
    /// # Errors
    /// [`ImageError::Corrupt`] if blocks overlap each other, or the table.
    pub fn blocks(&self, table: &[u8]) -> Result<Vec<StreamBlock>, ImageError> {
        let mut blocks = Vec::new();
        for (number, entry) in (0_u32..).zip(table.chunks_exact(4)) {
            let sector = u32_at(entry, 0);
            if sector != UNUSED {
                blocks.push(StreamBlock { sector, number });
            }
        }
        blocks.sort_unstable();
        let mut free = self.end();
        for block in &blocks {
            if block.offset() < free {
                let problem = format!(
                    "block {} begins at byte {}, in another structure",
                    block.number,
                    block.offset()
                );
                let structure = "block allocation table entry";
                let offset = self.header.table_offset + u64::from(block.number) * 4;
                return Err(ImageError::Corrupt { structure, offset, problem });
            }
            free = block.offset() + self.header.bitmap_bytes() + self.header.block_bytes;
        }
        Ok(blocks)
    }

    /// Checks the footer at the end of the stream.
    ///
    /// # Errors
    /// As [`Footer::parse`], or it is that of another image.
    pub fn check_end(&self, bytes: &[u8; FOOTER_BYTES]) -> Result<(), ImageError> {
        let last = Footer::parse(bytes)?;
        if last.size == self.footer.size && last.disk_type == self.footer.disk_type {
            return Ok(());
        }
        Err(ImageError::header("the footer at the end is that of another image"))
    }
}

impl StreamBlock {
    /// Returns the offset of the block's bitmap in the stream, in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.sector) * SECTOR
    }

    /// Returns the number of the block on the disk.
    pub fn number(self) -> u64 {
        self.number.into()
    }
}

/// Returns whether a bitmap has the bit of a sector of its block.
pub fn has_sector(bitmap: &[u8], sector: u64) -> bool {
    super::batmap::has_bit(bitmap, sector)
}
