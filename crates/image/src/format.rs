//! Contract of an image format towards the owner of its map.

use crate::map::{Layout, Place, Word};
use crate::{ImageError, ImageFile};

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
    async fn load(&mut self, first: u64, words: &mut [Word]) -> Result<(), ImageError>;

    /// Allocates a cluster that reads as zeroes. Its refcount is written, but not durable.
    ///
    /// # Errors
    /// [`ImageError::Full`], or storage fails.
    async fn allocate(&mut self) -> Result<Place, ImageError>;

    /// Writes all that [`Format::write`] of these references needs and nothing references yet.
    ///
    /// # Errors
    /// Storage fails or is full.
    async fn prepare(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError>;

    /// Writes references by granule. What they name is durable.
    ///
    /// # Errors
    /// Storage fails.
    async fn write(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError>;

    /// Takes back a cluster that nothing references on disk and no request uses: punches it, then
    /// clears its refcount, then may allocate it again.
    ///
    /// # Errors
    /// Storage fails.
    async fn reclaim(&mut self, place: Place) -> Result<(), ImageError>;

    /// Forgets a cluster to which a write failed: a late write may still land there. It is never
    /// allocated again while this process runs.
    fn condemn(&mut self, place: Place);

    /// Takes over an image. `used` are the clusters that the journal names and the references on
    /// disk do not. All others without a reference are free.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    async fn take_over(&mut self, used: &[Place]) -> Result<(), ImageError>;
}
