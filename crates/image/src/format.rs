//! Contract of an image format towards the owner of its map.

use std::path::PathBuf;
use std::sync::Arc;

use crate::map::{Layout, Place, Word};
use crate::{ImageError, ImageFile};

/// References of an image: which cluster belongs to which granule, on disk.
///
/// The owner alone calls it. It writes in three phases with a sync between each: what nothing
/// references yet ([`Format::prepare`]), references ([`Format::write`]), and what nothing
/// references any more ([`Format::reclaim`]). So an image is consistent at any point.
///
/// A cluster is allocated in memory only, and its refcount is written by the round that references
/// it. So a process that dies leaks none of the clusters that it allocated. A round that dies leaks
/// at most what it prepared.
#[allow(async_fn_in_trait, reason = "an owner stays on its thread")]
pub trait Format {
    /// The file with references and clusters.
    type File: ImageFile + Clone;

    /// Returns the file.
    fn file(&self) -> Self::File;

    /// Returns the sizes of the map.
    fn layout(&self) -> Layout;

    /// Returns whether nothing is ever written to the image.
    fn is_read_only(&self) -> bool;

    /// Returns whether the format notes for each block whether it is stored.
    fn has_blocks(&self) -> bool;

    /// Returns whether each granule has one place, which the allocation of a larger unit fixes: what
    /// the map takes for absent may have its place on disk, and a place is not given again before it
    /// is reclaimed.
    fn has_fixed_places(&self) -> bool {
        false
    }

    /// Gives up memory that can be filled again from the file.
    fn shrink(&mut self);

    /// Loads the references of granules from `first` on.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    async fn load(&mut self, first: u64, words: &mut [Word]) -> Result<(), ImageError>;

    /// Loads the reference of one granule.
    ///
    /// # Errors
    /// As [`Format::load`].
    async fn load_word(&mut self, granule: u64) -> Result<Word, ImageError> {
        let mut words = [Word::ASK];
        self.load(granule, &mut words).await?;
        let [word] = words;
        Ok(word)
    }

    /// Returns the parts of a granule whose reference on disk is [`Word::MIXED`].
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    async fn describe(&mut self, granule: u64) -> Result<Pieces, ImageError>;

    /// Reserves the space that a new reference of a granule needs, apart from its cluster. Then
    /// [`Format::prepare`] does not run out of space.
    ///
    /// # Errors
    /// [`ImageError::Full`], or storage fails.
    async fn reserve(&mut self, granule: u64) -> Result<(), ImageError>;

    /// Chooses a free cluster for a granule. Its content is arbitrary. Nothing on disk changes, but the
    /// file may grow.
    ///
    /// # Errors
    /// [`ImageError::Full`], or storage fails.
    async fn allocate(&mut self, granule: u64) -> Result<Place, ImageError>;

    /// Writes all that [`Format::write`] of these references needs and nothing references yet:
    /// refcounts and new tables. Words that are the same on disk change nothing.
    ///
    /// # Errors
    /// Storage fails or is full.
    async fn prepare(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError>;

    /// Writes references by granule. What they name is durable.
    ///
    /// # Errors
    /// Storage fails.
    async fn write(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError>;

    /// Returns the clusters that the references of the last [`Format::write`] replaced, once for
    /// each reference. Clusters of data words are not among them: the owner knows these. The caller
    /// has made the references durable.
    fn take_replaced(&mut self) -> Vec<Place>;

    /// Notes that a granule has lost its place in the map. [`Format::reclaim`] follows.
    fn enter_limbo(&mut self, _granule: u64) {}

    /// Returns whether a granule has lost its fixed place, which is not reclaimed yet: whatever the
    /// disk says, the granule has no place.
    fn is_in_limbo(&self, _granule: u64) -> bool {
        false
    }

    /// Drops a reference to a cluster that is gone from the disk and that no request uses. The last
    /// one frees the cluster: punches it, then clears its refcount, then may allocate it again.
    /// `granule` had it, or is `u64::MAX` for one of [`Format::take_replaced`].
    ///
    /// # Errors
    /// Storage fails.
    async fn reclaim(&mut self, granule: u64, place: Place) -> Result<(), ImageError>;

    /// Forgets a cluster of a granule to which a write failed: a late write may still land there. It
    /// is never allocated again while this process runs.
    fn condemn(&mut self, granule: u64, place: Place);

    /// Takes over an image. `used` are the references of the journal: their clusters are allocated,
    /// even if their refcounts are not on disk.
    ///
    /// # Errors
    /// Storage fails or is full, or the image is damaged.
    async fn take_over(&mut self, used: &[(u64, Word)]) -> Result<(), ImageError>;
}

/// Parts of a granule, in order. Their lengths add up to the size of a granule.
pub type Pieces = Arc<[Piece]>;

/// Part of a granule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Length in bytes.
    pub len: usize,
    /// Place of the bytes.
    pub source: PieceSource,
}

/// Place of the bytes of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceSource {
    /// These bytes, which were compressed.
    Bytes(Vec<u8>),
    /// Zeroes.
    Zero,
    /// The layer below.
    Below,
    /// The file of the image, from this offset in bytes.
    File(u64),
}

/// Use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
}

/// Reference to the image below, as the header has it. It is never followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Name: a path, or another protocol's address.
    pub file: PathBuf,
    /// Format, if the header names one.
    pub format: Option<String>,
}
