//! Reasons why disks cannot share a storage.

use memory::MemoryError;
use share::ShareError;

/// Failure of the scheduler of a storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// No memory is available for its state.
    #[error("no memory for the scheduler of a storage")]
    Memory(#[from] MemoryError),
    /// A number is outside of its range, or a table is full.
    #[error(transparent)]
    Share(#[from] ShareError),
}
