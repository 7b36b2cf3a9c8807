//! Why the records cannot be had.

use toolstack::store::StoreError;
use xenapi::ApiError;

/// Why the records of a store cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row is none of ours.
    #[error(
        "row `{row}` of the state cannot be used ({why}): start the version that wrote it, or \
         import an export"
    )]
    Row {
        /// Table and name of the row.
        row: String,
        /// What is wrong with it.
        why: String,
    },
    /// What follows from the records could not be worked out.
    #[error("what follows from the records of the state could not be worked out: {0}")]
    Follows(#[source] ApiError),
    /// The thread that stores could not be started.
    #[error("cannot start the thread that stores: see to the limits of processes and memory")]
    Thread(#[source] std::io::Error),
}

/// Why not everything was stored at the end. The next start takes that end for a crash.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread that stores broke off before.
    #[error("the thread that stores broke off, and the log says where: start again")]
    BrokeOff,
}
