//! Errors of opening and closing the store.

use toolstack::store::StoreError;
use xenapi::ApiError;

/// Reason why the records cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row is invalid.
    #[error(
        "row `{row}` of the state cannot be used ({why}): start the version that wrote it, or \
         import an export"
    )]
    Row {
        /// Table and name of the row.
        row: String,
        /// Problem with the row.
        why: String,
    },
    /// The derive hook failed.
    #[error("cannot compute the derived fields of the stored records: {0}")]
    Follows(#[source] ApiError),
    /// The writer thread could not be started.
    #[error("cannot start the database writer: check the limits of processes and memory")]
    Thread(#[source] std::io::Error),
}

/// Reason why not all changes were stored at the end. The next start treats this end as a crash.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The writer thread has panicked before.
    #[error("the database writer panicked: see the log, then start again")]
    BrokeOff,
}
