//! An open image.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::SECTOR;
use super::batmap::Batmap;
use super::fields::array;
use super::footer::{DiskType, FOOTER_BYTES, Footer, has_cookie};
use super::header::{HEADER_BYTES, Header};
use crate::format::Access;
use crate::tables::{TableRange, Tables};
use crate::{ImageError, ImageFile};

/// Entry of the BAT of a block that the image does not have.
pub(super) const UNUSED: u32 = u32::MAX;

/// Open image. One owner uses it at a time. Nothing is locked: the caller has taken the lock.
#[derive(Debug)]
pub struct Image<F> {
    pub(super) footer: Footer,
    /// `None` in fixed images.
    pub(super) header: Option<Header>,
    pub(super) batmap: Option<Batmap>,
    pub(super) tables: Tables<F>,
}

impl<F: ImageFile> Image<F> {
    /// Reads footer and header of a file. Changes nothing.
    ///
    /// # Errors
    /// [`ImageError::WrongFormat`], [`ImageError::Header`], [`ImageError::Unsupported`], or the file
    /// fails. To write: [`ImageError::NeedsRepair`] for an image in a saved state.
    pub async fn open(file: F, access: Access) -> Result<Self, ImageError> {
        let mut tables = Tables::new(file).await?;
        let footer = read_footer(&mut tables).await?;
        if access == Access::Write && footer.in_saved_state {
            let next = "resume the machine that was suspended with it, and shut it down";
            return Err(ImageError::NeedsRepair { state: "in a saved state", next });
        }
        let header = match footer.disk_type {
            DiskType::Fixed => None,
            _ => Some(read_header(&mut tables, &footer).await?),
        };
        let batmap = match &header {
            Some(header) => Batmap::read(&mut tables, &footer, header).await?,
            None => None,
        };
        Ok(Self { footer, header, batmap, tables })
    }

    /// Returns the footer.
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Returns the dynamic header. `None` in fixed images.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Returns the file.
    pub fn file(&self) -> &F {
        &self.tables.file
    }

    /// Ends long work with [`ImageError::Stopped`] when `stop` becomes true.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.tables.stop_when(stop);
    }

    /// Returns the dynamic header, of an image that has blocks.
    pub(super) fn blocks(&self) -> Result<&Header, ImageError> {
        self.header.as_ref().ok_or_else(|| ImageError::header("a fixed image has no blocks"))
    }

    /// Returns the entry of a block in the BAT, as it is.
    pub(super) async fn entry(&mut self, block: u64) -> Result<u32, ImageError> {
        let table = self.blocks()?.table();
        if block >= table.bytes / 4 {
            return Ok(UNUSED);
        }
        let (slice, at) = self.tables.slice("block allocation table", table, block * 4).await?;
        Ok(u32::from_be_bytes(array(slice, at)))
    }

    /// Returns the offset of a block in the file in bytes, that of its bitmap. `None` if the image
    /// does not have it.
    ///
    /// # Errors
    /// [`ImageError::Corrupt`] if it is not in its own place, or the file fails.
    pub(super) async fn block(&mut self, block: u64) -> Result<Option<u64>, ImageError> {
        let entry = self.entry(block).await?;
        if entry == UNUSED {
            return Ok(None);
        }
        let start = u64::from(entry) * SECTOR;
        let problem = self.misplaced(start).await?;
        let offset = self.blocks()?.table_offset.saturating_add(block * 4);
        match problem {
            None => Ok(Some(start)),
            Some(problem) => {
                let structure = "block allocation table entry";
                Err(ImageError::Corrupt { structure, offset, problem })
            }
        }
    }

    /// Returns the bitmap of a block at `start`.
    pub(super) async fn bitmap(&mut self, start: u64) -> Result<&[u8], ImageError> {
        let range = TableRange { offset: start, bytes: self.blocks()?.bitmap_bytes() };
        // A bitmap has at most 64 KiB, which is one slice.
        Ok(self.tables.slice("sector bitmap", range, 0).await?.0)
    }

    /// Returns whether footer and copy are as they must be: the one at the end, and the one at
    /// byte 0.
    pub(super) async fn footers(&mut self) -> Result<[FooterState; 2], ImageError> {
        let end = self.tables.len() - FOOTER_BYTES as u64;
        let at_end = footer_state(&read_sector(&mut self.tables, end).await?, &self.footer);
        let copy = match self.header {
            Some(_) => footer_state(&read_sector(&mut self.tables, 0).await?, &self.footer),
            None => FooterState::Same,
        };
        Ok([at_end, copy])
    }
}

/// State of a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FooterState {
    Same,
    /// Nothing was written there, or a footer of the image before it grew.
    Outdated,
    Different,
}

fn footer_state(found: &[u8; FOOTER_BYTES], footer: &Footer) -> FooterState {
    let is_older = || Footer::parse(found).is_ok_and(|older| older.unique_id == footer.unique_id);
    if *found == footer.bytes {
        FooterState::Same
    } else if found.iter().all(|byte| *byte == 0) || is_older() {
        FooterState::Outdated
    } else {
        FooterState::Different
    }
}

async fn read_sector<F: ImageFile>(
    tables: &mut Tables<F>,
    offset: u64,
) -> Result<[u8; FOOTER_BYTES], ImageError> {
    let mut bytes = [0; FOOTER_BYTES];
    tables.read("footer", offset, &mut bytes).await?;
    Ok(bytes)
}

/// Returns the footer that holds. At the end, only a program of the host writes: a fixed footer
/// there holds whatever a guest has at byte 0. Else the copy at byte 0 holds, and the footer at the
/// end only if that copy is damaged: an image that was growing may have none at its end.
async fn read_footer<F: ImageFile>(tables: &mut Tables<F>) -> Result<Footer, ImageError> {
    let len = tables.len();
    let Some(end) = len.checked_sub(FOOTER_BYTES as u64) else {
        let problem = format!("it has {len} bytes, less than a footer");
        return Err(ImageError::WrongFormat { format: "vhd", problem });
    };
    let at_end = read_sector(tables, end).await?;
    let last = Footer::parse(&at_end);
    if let Ok(footer) = &last
        && footer.disk_type == DiskType::Fixed
    {
        if footer.size > end {
            let problem = format!("a fixed disk of {} bytes in a file of {len}", footer.size);
            return Err(ImageError::header(problem));
        }
        return Ok(footer.clone());
    }
    let copy = read_sector(tables, 0).await?;
    let first = Footer::parse(&copy);
    match (first, last) {
        (Ok(footer), _) if footer.disk_type != DiskType::Fixed => Ok(footer),
        (_, Ok(footer)) => Ok(footer),
        (Err(error), _) if has_cookie(&copy) => Err(error),
        (_, Err(error)) => Err(error),
    }
}

async fn read_header<F: ImageFile>(
    tables: &mut Tables<F>,
    footer: &Footer,
) -> Result<Header, ImageError> {
    let offset = footer.data_offset;
    let end = offset.checked_add(HEADER_BYTES as u64).filter(|end| *end <= tables.len());
    if !offset.is_multiple_of(SECTOR) || offset < SECTOR || end.is_none() {
        let problem =
            format!("the dynamic header is at byte {offset} of a file of {}", tables.len());
        return Err(ImageError::header(problem));
    }
    let mut bytes = vec![0; HEADER_BYTES];
    tables.read("dynamic header", offset, &mut bytes).await?;
    Header::parse(bytes, offset, footer, tables.len())
}
