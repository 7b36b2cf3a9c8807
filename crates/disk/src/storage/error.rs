//! Reasons why disks cannot share a storage.

use std::io;
use std::path::PathBuf;

use memory::MemoryError;
use share::ShareError;

/// Failure of the scheduler of a storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// No memory is available for its state.
    #[error("no memory for the scheduler of a storage")]
    Memory(#[from] MemoryError),
    /// The file by which processes share the storage cannot be used.
    #[error("cannot share the storage with other processes by {path}")]
    State {
        /// File of the state, or FIFO of a process.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A number is outside of its range, or a table is full.
    #[error(transparent)]
    Share(#[from] ShareError),
}
