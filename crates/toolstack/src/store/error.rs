//! What can be wrong with a store.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::SCHEMA;

/// Why a store cannot be had, or did not take a batch.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "the state file {} is open in {holder}: end that process, or give another state \
         directory", path.display()
    )]
    Taken {
        /// The file.
        path: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// The system refuses something.
    #[error(
        "cannot {doing} the state file {}: see to its directory's permissions and its disk, then \
         start again", path.display()
    )]
    Os {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// No room. The batch is not there; the next one is tried again.
    #[error(
        "no room for the state file {}: free space on its file system; no restart is \
         needed", path.display()
    )]
    Full {
        /// The file, or `memory`.
        path: PathBuf,
    },
    /// It is not what was written.
    #[error(
        "the state file {} is damaged ({what}): move it away, then import an export or begin \
         anew", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It was written by a newer version.
    #[error(
        "the state file {} has schema {found}, and this version knows {SCHEMA}: start the \
         version that wrote it, or import an export of this one's", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u32,
    },
    /// Whether the last batch is on disk cannot be known.
    #[error(
        "the disk of the state file {} failed while it was written, and what is there cannot be \
         relied on: see to the disk, then start again", path.display()
    )]
    Unsure {
        /// The file.
        path: PathBuf,
    },
    /// A key or value is not within bounds.
    #[error(
        "{what} of row `{row}` is {bytes} bytes long: 1 to {most} without control characters \
         are taken"
    )]
    Row {
        /// What of it.
        what: &'static str,
        /// The row, as far as it can be shown.
        row: String,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// A batch is too large as a whole.
    #[error("a batch of {bytes} bytes is too large: at most {most} are stored at once")]
    Batch {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        most: usize,
    },
    /// A counter would go back, or the ceiling is below the generation.
    #[error(
        "a batch with generation {generation} and ceiling {ceiling} cannot follow \
         {stored_generation} and {stored_ceiling}: neither goes back, and no generation passes its \
         ceiling"
    )]
    Backwards {
        /// The batch's.
        generation: u64,
        /// The batch's.
        ceiling: u64,
        /// The store's.
        stored_generation: u64,
        /// The store's.
        stored_ceiling: u64,
    },
    /// An import would mix two states.
    #[error(
        "an import needs an empty store, and this one has {rows} rows: give a new state directory"
    )]
    NotEmpty {
        /// How many it has.
        rows: usize,
    },
    /// A line of an import is none of an export.
    #[error("line {line} of the import: {why}; nothing was imported: use an unchanged export")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// An export cannot be written.
    #[error("cannot write the export")]
    Export(#[source] io::Error),
    /// An import cannot be read.
    #[error("cannot read the import after line {line}")]
    Import {
        /// The last line that was read.
        line: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// Who has a file open, as far as the kernel tells.
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
