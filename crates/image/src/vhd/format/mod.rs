//! A VHD that is written: its side of [`Format`].
//!
//! A granule is 64 KiB of a block. Its place follows from the place of its block, so a granule that
//! loses its data gets the same place again, and only after it is reclaimed.
//!
//! ```text
//! allocate: the first granule of an absent block gets a block behind all others, in memory
//!           (the file grows ahead, and has a footer at its new end)
//! prepare:  zeroed bitmaps of new blocks; zeroes where bits will be cleared; the batmap is cleared
//!    sync
//! write:    bits of granules, BAT entries; a block without a bit leaves the BAT
//!    sync
//! reclaim:  granules and blocks are punched
//! ```
//! At any point each block in the BAT has its own bitmap, and each set bit its data. The copy of the
//! footer at byte 0 changes only when the disk grows.

mod granule;
mod load;
mod prepare;
mod resize;
mod space;
mod verify;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use super::SECTOR;
use super::image::Image;
use crate::format::{Access, Format, Pieces};
use crate::growth::Growth;
use crate::map::{Layout, Place, Word};
use crate::{ImageError, ImageFile};
use granule::{BLOCK_BITS, GRANULE_BITS, GRANULE_BYTES, GranuleFormat, UNIT_BITS};
use space::Space;

/// Shift of the granules of a page of the map.
const PAGE_BITS: u8 = 9;
/// Bytes of a block of the map.
const BLOCK_BYTES: u64 = 1 << BLOCK_BITS;

/// Use of an image with blocks.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Whether a parent has the data that the image does not have.
    pub has_below: bool,
    /// Alignment of direct I/O in bytes, at least 512.
    pub alignment: u64,
    /// Smallest write to the disk in bytes. With less than 4 KiB, the first write to a granule stores
    /// it as a whole.
    pub write_bytes: u64,
}

impl OpenOptions {
    /// Returns the use of an image without a parent, whose disk of `size` bytes is written in blocks
    /// of 4 KiB if it consists of these.
    pub fn new(size: u64) -> Self {
        let write_bytes = if size.is_multiple_of(BLOCK_BYTES) { BLOCK_BYTES } else { SECTOR };
        Self { has_below: false, alignment: SECTOR, write_bytes }
    }
}

/// Open VHD with blocks that its map's owner writes. The caller has locked it.
#[derive(Debug)]
pub struct VhdFormat<F> {
    image: Image<F>,
    writes: bool,
    granules: GranuleFormat,
    /// Alignment of data in the file in bytes, which direct I/O needs.
    alignment: u64,
    space: Space,
    /// Blocks that the BAT does not name yet, and their offset in the file.
    new_blocks: BTreeMap<u64, u64>,
    /// Granules whose place was given and that the disk does not show.
    placed: BTreeSet<u64>,
    /// Granules that have lost their place and whose place is not reclaimed yet.
    limbo: BTreeSet<u64>,
    /// Granules to which a write failed.
    condemned: BTreeSet<u64>,
    /// Blocks that have left the BAT and are not free yet, by their offset in the file.
    leaving: BTreeMap<u64, Leaving>,
    /// Blocks that the last references have replaced, by their offset in the file.
    replaced: Vec<u64>,
}

/// Block that has left the BAT.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    block: u64,
    /// Whether all requests that began before have ended.
    is_unused: bool,
}

impl<F: ImageFile + Clone> VhdFormat<F> {
    /// Opens an image to write it. Nothing is changed before [`Format::take_over`].
    ///
    /// # Errors
    /// As [`Image::open`].
    pub async fn open(file: F, options: OpenOptions) -> Result<Self, ImageError> {
        Self::open_for(file, options, Access::Write).await
    }

    /// Opens an image to read it. Its file never changes.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub async fn open_read_only(file: F, options: OpenOptions) -> Result<Self, ImageError> {
        Self::open_for(file, options, Access::Read).await
    }

    async fn open_for(file: F, options: OpenOptions, access: Access) -> Result<Self, ImageError> {
        let image = Image::open(file, access).await?;
        image.blocks()?;
        let (size, writes) = (image.footer.size, access == Access::Write);
        let OpenOptions { has_below, alignment, write_bytes } = options;
        let has_blocks = write_bytes.is_multiple_of(BLOCK_BYTES) || !writes;
        let granules = GranuleFormat { size, has_below, has_blocks };
        let space = Space::new(image.tables.len(), size);
        let (new_blocks, placed, limbo) = Default::default();
        let (condemned, leaving, replaced) = Default::default();
        Ok(Self {
            image,
            writes,
            granules,
            alignment,
            space,
            new_blocks,
            placed,
            limbo,
            condemned,
            leaving,
            replaced,
        })
    }

    /// Returns whether the place of a granule is given, or not reclaimed yet.
    fn is_taken(&self, granule: u64) -> bool {
        self.placed.contains(&granule) || self.limbo.contains(&granule)
    }

    /// Returns the image, to read it.
    pub fn image(&mut self) -> &mut Image<F> {
        &mut self.image
    }

    /// Sets the most bytes by which the file grows at a time.
    pub(crate) fn set_growth(&mut self, bytes: u64) {
        self.space.growth = Growth::at_most(bytes);
    }

    /// Returns the sizes of a block and of its bitmap in bytes.
    fn block_sizes(&self) -> Result<(u64, u64), ImageError> {
        let header = self.image.blocks()?;
        Ok((header.block_bytes, header.bitmap_bytes()))
    }

    /// Returns the granules of a block.
    fn granules_of(&self, block: u64) -> Result<std::ops::Range<u64>, ImageError> {
        let per_block = self.block_sizes()?.0 >> GRANULE_BITS;
        let (first, granules) = (block * per_block, self.layout().granules);
        Ok(first..(first + per_block).min(granules))
    }

    /// Returns the block of a granule, and the offset of the granule from the begin of the block in
    /// the file.
    fn split(&self, granule: u64) -> Result<(u64, u64), ImageError> {
        let (block_bytes, bitmap_bytes) = self.block_sizes()?;
        let per_block = block_bytes >> GRANULE_BITS;
        let within = (granule % per_block) << GRANULE_BITS;
        Ok((granule / per_block, bitmap_bytes + within))
    }

    /// Returns the place of a granule whose block is at `start`.
    fn place_in(&self, start: u64, granule: u64) -> Result<Place, ImageError> {
        let (_, offset) = self.split(granule)?;
        Place::new((start + offset) >> UNIT_BITS).ok_or(ImageError::Full)
    }

    /// Punches a range. Storage that cannot do it gets zeroes.
    async fn zero(&self, offset: u64, bytes: u64) -> Result<(), ImageError> {
        let file = &self.image.tables.file;
        match file.punch(offset, bytes).await {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {}
            other => return other.map_err(ImageError::io("punch", offset)),
        }
        for at in (offset..offset + bytes).step_by(GRANULE_BYTES as usize) {
            let zeroes = vec![0; GRANULE_BYTES.min(offset + bytes - at) as usize];
            file.write_at(at, &zeroes).await.map_err(ImageError::io("write", at))?;
        }
        Ok(())
    }

    async fn sync(&self) -> Result<(), ImageError> {
        self.image.tables.file.sync().await.map_err(ImageError::io("flush", 0))
    }
}

fn corrupt_journal(offset: u64, problem: &str) -> ImageError {
    ImageError::Corrupt { structure: "journal", offset, problem: problem.into() }
}

impl<F: ImageFile + Clone> Format for VhdFormat<F> {
    type File = F;

    fn file(&self) -> F {
        self.image.tables.file.clone()
    }

    fn shrink(&mut self) {
        self.image.tables.forget();
    }

    fn layout(&self) -> Layout {
        Layout {
            granules: self.image.footer.size.div_ceil(GRANULE_BYTES),
            granule_bits: GRANULE_BITS,
            block_bits: BLOCK_BITS,
            unit_bits: UNIT_BITS,
            page_bits: PAGE_BITS,
        }
    }

    fn is_read_only(&self) -> bool {
        !self.writes
    }

    fn has_blocks(&self) -> bool {
        self.granules.has_blocks
    }

    fn has_fixed_places(&self) -> bool {
        true
    }

    async fn load(&mut self, first: u64, words: &mut [Word]) -> Result<(), ImageError> {
        for (granule, word) in (first..).zip(words) {
            *word = self.disk_word(granule).await?;
        }
        Ok(())
    }

    async fn describe(&mut self, granule: u64) -> Result<Pieces, ImageError> {
        self.pieces(granule).await
    }

    async fn reserve(&mut self, _: u64) -> Result<(), ImageError> {
        // Bitmaps have their space with their block, and the BAT has it from the beginning.
        Ok(())
    }

    async fn allocate(&mut self, granule: u64) -> Result<Place, ImageError> {
        if self.condemned.contains(&granule) {
            let offset = granule << GRANULE_BITS;
            let problem = std::io::Error::other("a write failed there before; attach it anew");
            return Err(ImageError::io("allocate", offset)(problem));
        }
        // A place is not given again before all requests that use it have ended.
        if self.is_taken(granule) {
            return Err(ImageError::Full);
        }
        let (block, _) = self.split(granule)?;
        let start = match self.image.block(block).await? {
            Some(start) => {
                // What the map has lost, and a round is still to clear.
                if self.disk_word(granule).await?.is_data() {
                    return Err(ImageError::Full);
                }
                self.reserve_space(self.place_in(start, granule)?).await?;
                start
            }
            None => match self.new_blocks.get(&block) {
                Some(start) => *start,
                None => {
                    let start = self.choose().await?;
                    self.new_blocks.insert(block, start);
                    start
                }
            },
        };
        let place = self.place_in(start, granule)?;
        self.placed.insert(granule);
        Ok(place)
    }

    async fn prepare(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        self.prepare_round(references).await
    }

    async fn write(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        self.write_references(references).await
    }

    fn take_replaced(&mut self) -> Vec<Place> {
        let replaced = std::mem::take(&mut self.replaced);
        replaced.into_iter().filter_map(|start| Place::new(start >> UNIT_BITS)).collect()
    }

    async fn reclaim(&mut self, granule: u64, place: Place) -> Result<(), ImageError> {
        let offset = place.units() * SECTOR;
        if granule == u64::MAX {
            if let Some(leaving) = self.leaving.get_mut(&offset) {
                leaving.is_unused = true;
            }
            return self.free_block(offset).await;
        }
        let start = offset.saturating_sub(self.split(granule)?.1);
        // A block that leaves is punched as a whole.
        let zeroed = match self.leaving.contains_key(&start) {
            true => Ok(()),
            false => self.zero(offset, GRANULE_BYTES).await,
        };
        if zeroed.is_err() {
            self.condemned.insert(granule);
        }
        self.limbo.remove(&granule);
        self.placed.remove(&granule);
        zeroed?;
        self.free_block(start).await
    }

    fn enter_limbo(&mut self, granule: u64) {
        self.limbo.insert(granule);
    }

    fn is_in_limbo(&self, granule: u64) -> bool {
        self.limbo.contains(&granule)
    }

    fn condemn(&mut self, granule: u64, _: Place) {
        self.condemned.insert(granule);
    }

    async fn take_over(&mut self, used: &[(u64, Word)]) -> Result<(), ImageError> {
        if !self.writes {
            return Ok(());
        }
        for (granule, word) in used.iter().filter(|(_, word)| word.is_data()) {
            let start = self.start_of(*granule, *word)?;
            let (block, _) = self.split(*granule)?;
            let known = match self.image.block(block).await? {
                Some(on_disk) => on_disk,
                None => *self.new_blocks.entry(block).or_insert(start),
            };
            if known != start || self.image.misplaced(start).await?.is_some() {
                return Err(corrupt_journal(start, "its block is elsewhere"));
            }
            if !self.disk_word(*granule).await?.is_data() {
                self.placed.insert(*granule);
            }
        }
        self.scan_space().await?;
        self.repair_footers().await
    }
}
