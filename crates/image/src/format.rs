//! Contract of an image format towards the owner of its map.

use std::io;

use rustix::io::Errno;

use crate::file::ImageFile;
use crate::map::{Layout, Place, Word};

/// Why a format cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The storage has no room.
    #[error("the storage is full")]
    Full,
    /// The storage failed.
    #[error("storage error: {0}")]
    Storage(#[from] io::Error),
    /// The image contradicts itself.
    #[error("the image is damaged: {0}; check it with `ringway image check`")]
    Damaged(String),
}

impl FormatError {
    /// Returns the error number that a request ends with.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Full => Errno::NOSPC,
            Self::Storage(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
            Self::Damaged(_) => Errno::IO,
        }
    }
}

/// References of an image: which cluster belongs to which granule, on disk.
///
/// The owner alone calls it. It writes in three phases with a sync between each: what nothing
/// references yet ([`Format::allocate`], [`Format::prepare`]), references ([`Format::write`]), and
/// what nothing references any more ([`Format::reclaim`]). So an image is consistent at any point.
#[allow(async_fn_in_trait, reason = "an owner stays on its thread")]
pub trait Format {
    /// The file with references and clusters.
    type File: ImageFile + Clone;

    /// Returns the file.
    fn file(&self) -> Self::File;

    /// Returns the sizes of the map.
    fn layout(&self) -> Layout;

    /// Returns whether the format notes for each block whether it is stored.
    fn has_blocks(&self) -> bool;

    /// Loads the references of granules from `first` on.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    async fn load(&mut self, first: u64, words: &mut [Word]) -> Result<(), FormatError>;

    /// Allocates a cluster that reads as zeroes. Its refcount is written, but not durable.
    ///
    /// # Errors
    /// [`FormatError::Full`], or storage fails.
    async fn allocate(&mut self) -> Result<Place, FormatError>;

    /// Writes all that [`Format::write`] of these references needs and nothing references yet.
    ///
    /// # Errors
    /// Storage fails or is full.
    async fn prepare(&mut self, references: &[(u64, Word)]) -> Result<(), FormatError>;

    /// Writes references by granule. What they name is durable.
    ///
    /// # Errors
    /// Storage fails.
    async fn write(&mut self, references: &[(u64, Word)]) -> Result<(), FormatError>;

    /// Takes back a cluster that nothing references on disk and no request uses: punches it, then
    /// clears its refcount, then may allocate it again.
    ///
    /// # Errors
    /// Storage fails.
    async fn reclaim(&mut self, place: Place) -> Result<(), FormatError>;

    /// Forgets a cluster to which a write failed: a late write may still land there. It is never
    /// allocated again while this process runs.
    fn condemn(&mut self, place: Place);

    /// Takes over an image. `used` are the clusters that the journal names and the references on
    /// disk do not. All others without a reference are free.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    async fn take_over(&mut self, used: &[Place]) -> Result<(), FormatError>;
}
