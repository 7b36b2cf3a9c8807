//! A qcow2 image that is written: its side of [`Format`].
//!
//! ```text
//! prepare: refcounts of new clusters, new L2 tables
//!          (if refcount blocks are new: sync, then the refcount table names them)
//!    sync
//! write:   L2 entries by slices, L1 entries
//!    sync
//! reclaim: clusters are punched, then counted down
//! ```
//! At any point each cluster that the header, a table or an entry names has its content and a
//! refcount. So a crash can only leak clusters.

mod describe;
mod grow;
mod load;
mod prepare;
mod release;
mod resize;
mod space;
mod verify;
pub(super) mod words;
mod write;

use std::collections::BTreeMap;

use super::image::Image;
use super::l2::L1Entry;
use crate::format::Access;
use crate::format::{Format, Pieces};
use crate::growth::Growth;
use crate::map::{Layout, Place, Word};
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};
use space::Space;
use words::{UNIT_BITS, WordFormat};

/// Shift of the granules of a page of the map.
const PAGE_BITS: u8 = 9;
/// Offset of the autoclear bits in the header.
const AUTOCLEAR_OFFSET: u64 = 88;

/// Open qcow2 image that its map's owner writes. The caller has locked it.
#[derive(Debug)]
pub struct Qcow2Format<F> {
    image: Image<F>,
    writes: bool,
    words: WordFormat,
    space: Space,
    /// Clusters for the L2 tables of L1 entries that need one.
    reserved: BTreeMap<u64, u64>,
    /// L2 tables of the round, by L1 index. No L1 entry names them yet.
    prepared: BTreeMap<u64, u64>,
    /// Clusters that the references of the round replace.
    replacing: Vec<u64>,
    /// Clusters that written references have replaced.
    replaced: Vec<u64>,
    /// Clusters that are free and not punched, with a planted bug.
    unpunched: Vec<u64>,
}

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Opens an image to write it. `has_below`: whether a layer below has the data that the image
    /// does not have. Nothing is changed before [`Format::take_over`].
    ///
    /// # Errors
    /// As [`Image::open`], or the image cannot say that a part of the disk is zero.
    pub async fn open(file: F, has_below: bool) -> Result<Self, ImageError> {
        Self::open_for(file, has_below, Access::Write).await
    }

    /// Opens an image to read it. Its file never changes.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub async fn open_read_only(file: F, has_below: bool) -> Result<Self, ImageError> {
        Self::open_for(file, has_below, Access::Read).await
    }

    async fn open_for(file: F, has_below: bool, access: Access) -> Result<Self, ImageError> {
        let image = Image::open(file, access).await?;
        let writes = access == Access::Write;
        if writes && has_below && image.header.version < 3 {
            let feature = "version 2 and a backing image, so it cannot store zeroes".into();
            let next = "upgrade it with `qemu-img amend -o compat=1.1`";
            return Err(ImageError::Unsupported { feature, next });
        }
        let words = WordFormat::new(&image.header, has_below);
        let space = Space::new(image.tables.len(), image.header.size);
        let (reserved, prepared) = Default::default();
        let (replacing, replaced, unpunched) = Default::default();
        Ok(Self { image, writes, words, space, reserved, prepared, replacing, replaced, unpunched })
    }

    /// Returns the image, to read it.
    pub fn image(&mut self) -> &mut Image<F> {
        &mut self.image
    }

    /// Sets the most bytes by which the file grows at a time.
    pub(crate) fn set_growth(&mut self, bytes: u64) {
        self.space.growth = Growth::at_most(bytes);
    }

    fn entries_per_table(&self) -> u64 {
        self.image.header.cluster_bytes() / self.image.header.l2_entry_bytes()
    }

    fn l2_range(&self, table: u64) -> TableRange {
        TableRange { offset: table, bytes: self.image.header.cluster_bytes() }
    }

    async fn l1_entry(&mut self, index: u64) -> Result<Option<L1Entry>, ImageError> {
        let l1 = self.image.header.l1;
        self.image.l1_entry(l1, index).await
    }

    /// Returns the offset of a cluster in the file.
    fn offset(&self, cluster: u64) -> u64 {
        cluster << self.image.header.cluster_bits
    }

    /// Returns the cluster at a place.
    fn cluster_at(&self, place: Place) -> u64 {
        place.units() >> (self.image.header.cluster_bits - UNIT_BITS)
    }

    fn place_of(&self, cluster: u64) -> Option<Place> {
        Place::new(cluster << (self.image.header.cluster_bits - UNIT_BITS))
    }

    /// Clears the bits of features that this writer does not maintain, and makes that durable.
    async fn clear_autoclear(&mut self) -> Result<(), ImageError> {
        if self.image.header.version < 3 || self.image.header.features.autoclear == 0 {
            return Ok(());
        }
        self.image.tables.write(AUTOCLEAR_OFFSET, &[0; 8]).await?;
        self.sync().await?;
        self.image.header.features.autoclear = 0;
        self.image.header.bitmaps = None;
        Ok(())
    }

    async fn sync(&self) -> Result<(), ImageError> {
        self.image.tables.file.sync().await.map_err(ImageError::io("flush", 0))
    }
}

impl<F: ImageFile + Clone> Format for Qcow2Format<F> {
    type File = F;

    fn file(&self) -> F {
        self.image.tables.file.clone()
    }

    fn shrink(&mut self) {
        self.image.tables.forget();
    }

    fn layout(&self) -> Layout {
        let header = &self.image.header;
        Layout {
            granules: header.size.div_ceil(header.cluster_bytes()),
            // Shifts are at most 21.
            granule_bits: header.cluster_bits as u8,
            block_bits: self.words.block_bits() as u8,
            unit_bits: UNIT_BITS as u8,
            page_bits: PAGE_BITS,
        }
    }

    fn is_read_only(&self) -> bool {
        !self.writes
    }

    fn has_blocks(&self) -> bool {
        self.image.header.has_extended_l2()
    }

    async fn load(&mut self, first: u64, words: &mut [Word]) -> Result<(), ImageError> {
        self.load_words(first, words).await
    }

    async fn describe(&mut self, granule: u64) -> Result<Pieces, ImageError> {
        self.pieces(granule).await
    }

    async fn reserve(&mut self, granule: u64) -> Result<(), ImageError> {
        let index = granule / self.entries_per_table();
        let has_table = self.prepared.contains_key(&index)
            || self.reserved.contains_key(&index)
            || self.l1_entry(index).await?.is_some_and(|entry| entry.copied);
        if !has_table {
            let cluster = self.choose().await?;
            self.reserved.insert(index, cluster);
        }
        Ok(())
    }

    async fn allocate(&mut self, _: u64) -> Result<Place, ImageError> {
        let cluster = self.choose().await?;
        self.place_of(cluster).ok_or(ImageError::Full)
    }

    async fn prepare(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        self.prepare_round(references).await
    }

    async fn write(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        self.write_references(references).await
    }

    fn take_replaced(&mut self) -> Vec<Place> {
        let replaced = std::mem::take(&mut self.replaced);
        replaced.into_iter().filter_map(|cluster| self.place_of(cluster)).collect()
    }

    async fn reclaim(&mut self, _: u64, place: Place) -> Result<(), ImageError> {
        self.release(self.cluster_at(place)).await
    }

    fn condemn(&mut self, _: u64, place: Place) {
        self.space.taken.insert(self.cluster_at(place));
    }

    async fn take_over(&mut self, used: &[(u64, Word)]) -> Result<(), ImageError> {
        if !self.writes {
            return Ok(());
        }
        self.clear_autoclear().await?;
        let data = used.iter().filter(|(_, word)| word.is_data());
        let clusters: Vec<_> = data.map(|(_, word)| self.cluster_at(word.place())).collect();
        // All of them, before the first one is chosen.
        self.space.taken.extend(&clusters);
        for cluster in clusters {
            self.cover(cluster).await?;
        }
        for (granule, _) in used {
            self.reserve(*granule).await?;
        }
        Ok(())
    }
}
