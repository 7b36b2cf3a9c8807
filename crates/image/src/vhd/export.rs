//! Layout of a VHD that is written as a stream, from its first byte to its last.

use std::time::{SystemTime, UNIX_EPOCH};

use super::create::{BLOCK_BYTES, HEADER_OFFSET, locators};
use super::footer::{DiskType, Footer};
use super::header::{HEADER_BYTES, Header, NewParent};
use super::{CreateOptions, Parent, SECTOR};
use crate::{BitSet, ImageError};

/// Bytes before the data of a block: zeroes, then the bitmap of its sectors. So the data lies at
/// multiples of 4 KiB.
const BLOCK_HEAD_BYTES: u64 = 4096;
/// Entry of a block that the image does not have.
const UNUSED: [u8; 4] = [0xff; 4];

/// Layout of an image whose blocks lie in the order of the disk: a head, then for each block its
/// head and its data, then a footer.
#[derive(Debug)]
pub struct ExportLayout {
    head: Vec<u8>,
    footer: Footer,
    blocks: u64,
}

impl ExportLayout {
    /// Bytes of the disk that a block has.
    pub const BLOCK_BYTES: u64 = BLOCK_BYTES as u64;

    /// Creates the layout of a disk of `size` bytes. `blocks` are those that the image has, and `id`
    /// is the identity of its content. With a parent, the image is a differencing one.
    ///
    /// # Errors
    /// [`ImageError::Create`] if a VHD cannot have this disk.
    pub fn new(
        size: u64,
        id: [u8; 16],
        parent: Option<Parent>,
        blocks: &BitSet,
    ) -> Result<Self, ImageError> {
        let options = match parent {
            Some(parent) => CreateOptions::differencing(size, parent),
            None => CreateOptions::dynamic(size),
        };
        let path = options.check()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let footer = Footer::new(options.disk_type, size, id, now);
        // At most 1,044,480.
        let entries = size.div_ceil(Self::BLOCK_BYTES) as u32;
        let is_differencing = options.disk_type == DiskType::Differencing;
        let (locators, mut texts) = locators(path.as_deref().unwrap_or_default());
        let parent = options.parent.map(|parent| NewParent {
            id: parent.unique_id,
            unix_seconds: parent.unix_seconds,
            name: path.unwrap_or_default(),
            locators,
        });
        if !is_differencing {
            texts.clear();
        }
        let table = HEADER_OFFSET + (HEADER_BYTES + texts.len()) as u64;
        let mut head = footer.bytes.to_vec();
        head.extend(Header::to_bytes(table, entries, BLOCK_BYTES, parent.as_ref()));
        head.extend(texts);
        let end = (table + u64::from(entries) * 4).next_multiple_of(BLOCK_HEAD_BYTES);
        let stride = BLOCK_HEAD_BYTES + Self::BLOCK_BYTES;
        let mut bitmap = end + BLOCK_HEAD_BYTES - SECTOR;
        for entry in 0..u64::from(entries) {
            if blocks.contains(entry) {
                // Below 2,045 GiB.
                head.extend(((bitmap / SECTOR) as u32).to_be_bytes());
                bitmap += stride;
            } else {
                head.extend(UNUSED);
            }
        }
        // Programs that read the table in whole sectors see unused entries.
        head.resize(head.len().next_multiple_of(SECTOR as usize), 0xff);
        head.resize(end as usize, 0);
        let blocks = blocks.iter().take_while(|block| *block < entries.into()).count() as u64;
        Ok(Self { head, footer, blocks })
    }

    /// Returns the size of the image in bytes.
    pub fn bytes(&self) -> u64 {
        let stride = BLOCK_HEAD_BYTES + Self::BLOCK_BYTES;
        self.head.len() as u64 + self.blocks * stride + self.footer.bytes.len() as u64
    }

    /// Returns what is before the first block.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns what is before the data of each block.
    pub fn block_head() -> Vec<u8> {
        let mut head = vec![0; (BLOCK_HEAD_BYTES - SECTOR) as usize];
        // A block has 4,096 sectors, all of which are there.
        head.resize(BLOCK_HEAD_BYTES as usize, 0xff);
        head
    }

    /// Returns what is behind the last block.
    pub fn footer(&self) -> &[u8] {
        &self.footer.bytes
    }
}
