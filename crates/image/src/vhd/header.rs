//! Dynamic header: block size, block allocation table (BAT), and the parent.

use super::fields::{array, checksum, put, u32_at, u64_at};
use super::footer::{DiskType, EPOCH_2000, Footer};
use super::locator::Locator;
use super::{MAX_BLOCK_BYTES, MAX_DISK_BYTES, MIN_BLOCK_BYTES, SECTOR};
use crate::ImageError;
use crate::tables::TableRange;

/// Bytes of a dynamic header.
pub(super) const HEADER_BYTES: usize = 1024;
const COOKIE: &[u8; 8] = b"cxsparse";
const VERSION: u32 = 0x0001_0000;
/// Offsets of fields.
const TABLE_OFFSET: usize = 16;
const ENTRIES: usize = 28;
const BLOCK_BYTES: usize = 32;
const CHECKSUM: usize = 36;
const PARENT_ID: usize = 40;
const PARENT_TIME: usize = 56;
const PARENT_NAME: usize = 64;
const PARENT_NAME_BYTES: usize = 512;
const LOCATORS: usize = 576;
pub(super) const LOCATOR_BYTES: usize = 24;
pub(super) const MAX_LOCATORS: usize = 8;

/// Checked dynamic header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Identity of the parent: [`Footer::unique_id`] of its image. Zeroes for a raw parent.
    pub parent_id: [u8; 16],
    /// Time when the parent was last changed, in seconds since 1970.
    pub parent_unix_seconds: u64,
    /// Name of the parent.
    pub parent_name: String,
    /// Offset of the header in bytes.
    pub(super) offset: u64,
    /// Number of entries of the BAT.
    pub(super) entries: u64,
    /// Offset of the BAT in bytes.
    pub(super) table_offset: u64,
    pub(super) locators: Vec<Locator>,
    /// As in the file.
    pub(super) bytes: Vec<u8>,
}

/// Parent of a new differencing image.
pub(super) struct NewParent {
    pub(super) id: [u8; 16],
    pub(super) unix_seconds: u64,
    pub(super) name: String,
    pub(super) locators: Vec<Locator>,
}

impl Header {
    /// Returns the bytes of the header of a new image.
    pub(super) fn to_bytes(
        table_offset: u64,
        entries: u32,
        block_bytes: u32,
        parent: Option<&NewParent>,
    ) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        put(&mut bytes, 0, COOKIE);
        put(&mut bytes, 8, &u64::MAX.to_be_bytes());
        put(&mut bytes, TABLE_OFFSET, &table_offset.to_be_bytes());
        put(&mut bytes, 24, &VERSION.to_be_bytes());
        put(&mut bytes, ENTRIES, &entries.to_be_bytes());
        put(&mut bytes, BLOCK_BYTES, &block_bytes.to_be_bytes());
        if let Some(parent) = parent {
            put(&mut bytes, PARENT_ID, &parent.id);
            // Until 2136.
            let time = parent.unix_seconds.saturating_sub(EPOCH_2000) as u32;
            put(&mut bytes, PARENT_TIME, &time.to_be_bytes());
            let name = parent.name.encode_utf16().take(PARENT_NAME_BYTES / 2 - 1);
            let name: Vec<u8> = name.flat_map(u16::to_be_bytes).collect();
            put(&mut bytes, PARENT_NAME, &name);
            for (index, locator) in parent.locators.iter().take(MAX_LOCATORS).enumerate() {
                put(&mut bytes, LOCATORS + index * LOCATOR_BYTES, &locator.to_bytes());
            }
        }
        seal(&mut bytes);
        bytes
    }

    /// Parses the header at `offset` of a file of `file_bytes`.
    ///
    /// # Errors
    /// [`ImageError::Header`], [`ImageError::Unsupported`].
    pub(super) fn parse(
        bytes: Vec<u8>,
        offset: u64,
        footer: &Footer,
        file_bytes: u64,
    ) -> Result<Self, ImageError> {
        let refuse = |problem: String| Err(ImageError::header(problem));
        if !bytes.starts_with(COOKIE) {
            return refuse(format!("no dynamic header is at byte {offset}"));
        }
        let (stored, sum) = (u32_at(&bytes, CHECKSUM), checksum(&bytes, CHECKSUM));
        if stored != sum {
            return refuse(format!(
                "the dynamic header has the checksum {stored:#x}, its bytes {sum:#x}"
            ));
        }
        let version = u32_at(&bytes, 24);
        if version >> 16 != VERSION >> 16 {
            let feature = format!("a header of version {}.{}", version >> 16, version & 0xffff);
            return Err(ImageError::Unsupported { feature, next: "convert it to version 1" });
        }
        let block_bytes = u64::from(u32_at(&bytes, BLOCK_BYTES));
        if !block_bytes.is_power_of_two()
            || !(MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&block_bytes)
        {
            let feature = format!(
                "blocks of {block_bytes} bytes (a power of two from 512 KiB to 256 MiB is)"
            );
            let next = "copy it with `qemu-img convert -O vpc`";
            return Err(ImageError::Unsupported { feature, next });
        }
        let (entries, table_offset) =
            (u64::from(u32_at(&bytes, ENTRIES)), u64_at(&bytes, TABLE_OFFSET));
        if entries * block_bytes < footer.size {
            let size = footer.size;
            return refuse(format!(
                "{entries} blocks of {block_bytes} bytes are less than the disk's {size} bytes"
            ));
        }
        if entries > MAX_DISK_BYTES / MIN_BLOCK_BYTES {
            return refuse(format!("the table has {entries} blocks, more than any disk needs"));
        }
        let end = table_offset.checked_add(entries * 4).filter(|end| *end <= file_bytes);
        let header = offset..offset + HEADER_BYTES as u64;
        let is_free = |end: u64| {
            table_offset >= FOOTER_END && (end <= header.start || table_offset >= header.end)
        };
        if !table_offset.is_multiple_of(SECTOR) || !end.is_some_and(is_free) {
            return refuse(format!(
                "the table of {entries} blocks at byte {table_offset} is not in its own place of \
                 a file of {file_bytes} bytes"
            ));
        }
        let is_differencing = footer.disk_type == DiskType::Differencing;
        let locators =
            if is_differencing { Locator::parse_all(locator_bytes(&bytes)) } else { vec![] };
        let name = bytes.get(PARENT_NAME..LOCATORS).unwrap_or_default();
        let time = u64::from(u32_at(&bytes, PARENT_TIME));
        Ok(Self {
            block_bytes,
            parent_id: array(&bytes, PARENT_ID),
            parent_unix_seconds: EPOCH_2000 + time,
            parent_name: utf16(name, u16::from_be_bytes),
            offset,
            entries,
            table_offset,
            locators,
            bytes,
        })
    }

    /// Returns the place of the BAT.
    pub(super) fn table(&self) -> TableRange {
        TableRange { offset: self.table_offset, bytes: self.entries * 4 }
    }

    /// Returns the first byte behind the BAT, in whole sectors.
    pub(super) fn table_end(&self) -> u64 {
        (self.table_offset + self.entries * 4).next_multiple_of(SECTOR)
    }

    /// Returns the size of a sector bitmap in bytes, in whole sectors.
    pub(super) fn bitmap_bytes(&self) -> u64 {
        (self.block_bytes / SECTOR / 8).next_multiple_of(SECTOR)
    }

    /// Changes the number of entries of the BAT. Returns the first sector of the header, which has
    /// the field and the checksum.
    pub(super) fn set_entries(&mut self, entries: u32) -> &[u8] {
        self.entries = entries.into();
        put(&mut self.bytes, ENTRIES, &entries.to_be_bytes());
        seal(&mut self.bytes);
        self.bytes.get(..SECTOR as usize).unwrap_or_default()
    }
}

/// First byte behind the copy of the footer.
const FOOTER_END: u64 = SECTOR;

fn seal(bytes: &mut [u8]) {
    let sum = checksum(bytes, CHECKSUM);
    put(bytes, CHECKSUM, &sum.to_be_bytes());
}

fn locator_bytes(bytes: &[u8]) -> &[u8] {
    bytes.get(LOCATORS..LOCATORS + MAX_LOCATORS * LOCATOR_BYTES).unwrap_or_default()
}

/// Decodes text up to its first zero.
pub(super) fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units = bytes.chunks_exact(2).map(|pair| unit(array(pair, 0)));
    let units: Vec<_> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16_lossy(&units)
}
