//! Sources of a layer: its image, and memory for its journal.

use std::sync::Arc;

use image::ImageError;
use image::format::Format;
use image::journal::{Cells, JournalError, JournalOwner};
use memory::Mapping;

/// Image of a layer. Its methods are called with the image locked, and may wait for the storage.
pub trait ImageSource: Send + Sync + 'static {
    /// Format of the image.
    type Format: Format<File: Send> + Send + 'static;

    /// Opens the format. Its owner takes it over.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    fn open(&self) -> Result<Self::Format, ImageError>;

    /// Makes the image larger, whose owner has stopped.
    ///
    /// # Errors
    /// The size is not possible, or storage fails or is full. Then the size is as before.
    fn grow(&self, size: u64) -> Result<(), ImageError>;

    /// Checks that a journal that another process left still fits the image.
    ///
    /// # Errors
    /// [`JournalError::Stale`], or storage fails.
    fn verify(&self, journal: &JournalOwner) -> Result<(), ImageError>;
}

/// Memory for the journal of an image. Its methods are called with the image locked.
pub trait JournalSource: Send + Sync {
    /// Returns the memory, with [`crate::JOURNAL`]'s number of cells, or
    /// [`crate::READ_ONLY_JOURNAL`]'s for an image that is only read: zeroes, or what the former
    /// process of the same disk left.
    ///
    /// # Errors
    /// There is no memory.
    fn open(self: Arc<Self>) -> Result<Cells, JournalError>;

    /// Returns the journal of a process that has died and that nothing preserves, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is not one of ours.
    fn former(&self) -> Result<Option<Cells>, JournalError> {
        Ok(None)
    }

    /// Explains why the journal that [`Self::former`] returned cannot be used.
    fn refusal(&self, cause: &ImageError) -> JournalError {
        JournalError::Memory { problem: cause.to_string() }
    }

    /// Removes the journal that [`Self::former`] returned: everything in it is durable.
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove_former(&self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Ends the use of the memory: everything in the journal is durable.
    fn close(&self) {}
}

/// Memory that something else preserves.
impl JournalSource for Mapping {
    fn open(self: Arc<Self>) -> Result<Cells, JournalError> {
        Ok(self)
    }
}
