//! Errors of a store.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::SCHEMA;

/// Error of opening a store or storing a batch.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error(
        "the state file {} is open in {holder}: end that process, or give another state \
         directory", path.display()
    )]
    Taken {
        /// Path of the file.
        path: PathBuf,
        /// Process that has it open.
        holder: Holder,
    },
    /// A system call failed.
    #[error(
        "cannot {doing} the state file {}: check its directory's permissions and its disk, then \
         start again", path.display()
    )]
    Os {
        /// Path of the file.
        path: PathBuf,
        /// Operation that failed.
        doing: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// The space does not suffice. The batch is not stored. The next one is tried again.
    #[error(
        "no room for the state file {}: free space on its file system; no restart is \
         needed", path.display()
    )]
    Full {
        /// Path of the file, or `memory`.
        path: PathBuf,
    },
    /// The content is not what was written.
    #[error(
        "the state file {} is damaged ({what}): move it away, then import an export or begin \
         anew", path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        what: String,
    },
    /// A newer version wrote the file.
    #[error(
        "the state file {} has schema {found}, and this version knows {SCHEMA}: start the \
         version that wrote it, or import an export of this one's", path.display()
    )]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Schema of the file.
        found: u32,
    },
    /// It is unknown whether the last batch is on disk.
    #[error(
        "the disk of the state file {} failed while it was written, and its content cannot be \
         trusted: check the disk, then start again", path.display()
    )]
    Unsure {
        /// Path of the file.
        path: PathBuf,
    },
    /// A key or value is out of its limits.
    #[error(
        "{what} of row `{row}` is {bytes} bytes long: 1 to {most} without control characters \
         are taken"
    )]
    Row {
        /// Part of the row.
        what: &'static str,
        /// The row, as far as it is printable.
        row: String,
        /// Size in bytes.
        bytes: usize,
        /// Largest permitted size in bytes.
        most: usize,
    },
    /// The batch is too large as a whole.
    #[error("a batch of {bytes} bytes is too large: at most {most} are stored at once")]
    Batch {
        /// Size in bytes.
        bytes: usize,
        /// Largest permitted size in bytes.
        most: usize,
    },
    /// A counter would go back, or the ceiling is below the generation.
    #[error(
        "a batch with generation {generation} and ceiling {ceiling} cannot follow \
         {stored_generation} and {stored_ceiling}: neither goes back, and no generation passes its \
         ceiling"
    )]
    Backwards {
        /// Generation of the batch.
        generation: u64,
        /// Ceiling of the batch.
        ceiling: u64,
        /// Generation of the store.
        stored_generation: u64,
        /// Ceiling of the store.
        stored_ceiling: u64,
    },
    /// The store is not empty: an import would mix two states.
    #[error(
        "an import needs an empty store, and this one has {rows} rows: give a new state directory"
    )]
    NotEmpty {
        /// Number of rows in the store.
        rows: usize,
    },
    /// A line of the import has the wrong form.
    #[error("line {line} of the import: {why}; nothing was imported: use an unchanged export")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// Reason.
        why: String,
    },
    /// The export cannot be written.
    #[error("cannot write the export")]
    Export(#[source] io::Error),
    /// The import cannot be read.
    #[error("cannot read the import after line {line}")]
    Import {
        /// Number of the last line that was read.
        line: usize,
        /// Error of the reader.
        source: io::Error,
    },
}

/// Process that has a file open, if the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(pub Option<u32>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}
