//! Batmap of XenServer: a bit for each block that is stored as a whole. XenServer then does not read
//! the block's bitmap. This code does not use it, and clears it before a bit can become wrong.

use super::SECTOR;
use super::fields::{array, put, u32_at, u64_at};
use super::footer::Footer;
use super::header::Header;
use super::image::Image;
use crate::tables::Tables;
use crate::{ImageError, ImageFile};

const COOKIE: &[u8; 8] = b"tdbatmap";
/// Creator of images that can have a batmap.
const CREATOR: &[u8; 4] = b"tap\0";
const CHECKSUM: usize = 24;
/// Bytes of the batmap's header that are used.
const HEADER_BYTES: usize = 32;
/// Checksum of a batmap without a bit.
const EMPTY_CHECKSUM: u32 = !0;

/// Place of a batmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batmap {
    /// Offset of its header in bytes.
    header: u64,
    /// Offset of its bits in bytes.
    offset: u64,
    /// Bytes of its bits.
    bytes: u64,
    is_empty: bool,
}

impl Batmap {
    /// Reads the header of a batmap, if there is one behind the BAT.
    pub(super) async fn read<F: ImageFile>(
        tables: &mut Tables<F>,
        footer: &Footer,
        header: &Header,
    ) -> Result<Option<Self>, ImageError> {
        let at = header.table_end();
        if footer.creator != *CREATOR || !tables.contains(at + HEADER_BYTES as u64 - 1).await? {
            return Ok(None);
        }
        let mut fields = [0; HEADER_BYTES];
        tables.read("batmap", at, &mut fields).await?;
        if !fields.starts_with(COOKIE) {
            return Ok(None);
        }
        let (offset, bytes) = (u64_at(&fields, 8), u64::from(u32_at(&fields, 16)) * SECTOR);
        let most = header.entries.div_ceil(8).next_multiple_of(SECTOR);
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= tables.len());
        let is_behind = offset >= at + HEADER_BYTES as u64;
        if !is_inside || !is_behind || bytes > most || bytes * 8 < header.entries {
            let problem = format!("a batmap of {bytes} bytes at byte {offset} cannot be");
            return Err(ImageError::header(problem));
        }
        let is_empty = u32_at(&fields, CHECKSUM) == EMPTY_CHECKSUM;
        Ok(Some(Self { header: at, offset, bytes, is_empty }))
    }

    /// Returns the first byte behind it.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

impl<F: ImageFile> Image<F> {
    /// Clears the batmap, if there is one with a bit. The caller syncs.
    pub(super) async fn clear_batmap(&mut self) -> Result<(), ImageError> {
        let Some(batmap) = self.batmap.as_mut().filter(|batmap| !batmap.is_empty) else {
            return Ok(());
        };
        // A batmap has at most 512 KiB.
        let zeroes = vec![0; batmap.bytes as usize];
        self.tables.write(batmap.offset, &zeroes).await?;
        let mut sector = [0; SECTOR as usize];
        self.tables.read("batmap", batmap.header, &mut sector).await?;
        put(&mut sector, CHECKSUM, &EMPTY_CHECKSUM.to_be_bytes());
        self.tables.write(batmap.header, &sector).await?;
        batmap.is_empty = true;
        Ok(())
    }

    /// Returns the bits of the batmap, the first block in the highest bit of the first byte.
    pub(super) async fn batmap_bits(&mut self) -> Result<Option<Vec<u8>>, ImageError> {
        let Some(batmap) = &self.batmap else { return Ok(None) };
        let mut bits = vec![0; batmap.bytes as usize];
        self.tables.read("batmap", batmap.offset, &mut bits).await?;
        Ok(Some(bits))
    }
}

/// Returns whether bit `index` is set, the first one in the highest bit of the first byte.
pub(super) fn has_bit(bits: &[u8], index: u64) -> bool {
    let [byte] = array(bits, usize::try_from(index / 8).unwrap_or(usize::MAX - 1));
    byte >> (7 - index % 8) & 1 == 1
}
