//! Persistent store of the daemon: rows of bytes under keys, written in batches.
//!
//! # Words
//! - **Row**: a value under a [`Key`], which consists of a table and a name. The bytes have a
//!   meaning only for their writer.
//! - **Batch**: rows to store and rows to delete, together with the event counters. It is stored
//!   atomically, and is on disk when [`Store::commit`] returns.
//! - **Generation**: number of a change. **Ceiling**: highest number that clients may have seen.
//!   After an unclean end, counting continues above it. Neither ever goes back.
//! - **Clean**: the batch was the last of an orderly end, and memory had nothing newer.
//!
//! # Model
//! A store belongs to one thread, which collects changes while the batch before them is written.
//! [`RedbStore`] uses a file, [`MemoryStore`] none. Both pass the same tests
//! (`tests/conformance.rs`).
//!
//! [`RedbStore`] reserves space beside its file. Only [`spare`](Batch::spare) batches may use it,
//! when the disk is full. So objects can still be removed, and machines can still stop.
//!
//! # Errors
//! [`StoreError`] names the file, the cause and the remedy. After an error of a commit, later
//! commits may succeed. The failed batch is not stored then. If it is stored after all, every later
//! call returns [`StoreError::Unsure`].
//!
//! # Invariants
//! - A file that is damaged, foreign or of a newer version is refused, and none of its rows
//!   changes.
//! - Rows outside the batch do not change, however the process or the host ends.

mod check;
mod error;
mod export;
mod memory;
mod redb;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

pub use error::{Holder, StoreError};
pub use export::{export, import, replace};
pub use memory::MemoryStore;
pub use redb::RedbStore;

/// Schema version of the rows. A store with a newer one is refused.
pub const SCHEMA: u32 = 1;
/// Longest table name, in bytes.
pub const TABLE_BYTES_MAX: usize = 64;
/// Longest row name, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest value, in bytes: fifty times what one call can contain.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// Largest batch, in bytes of keys and values: an import of a whole host's state is one batch.
pub const BATCH_BYTES_MAX: usize = 1 << 30;

/// Key of a row. Ordered by table, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Table, such as `obj/VM`: 1 to [`TABLE_BYTES_MAX`] bytes without control characters.
    pub table: Cow<'static, str>,
    /// Name in the table: 1 to [`NAME_BYTES_MAX`] bytes without control characters.
    pub name: String,
}

impl Key {
    /// Creates the key of the row `name` in `table`.
    pub fn new(table: impl Into<Cow<'static, str>>, name: impl Into<String>) -> Self {
        Self { table: table.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// Changes that are stored atomically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// New value of each row; `None` deletes the row.
    pub changes: BTreeMap<Key, Option<Vec<u8>>>,
    /// Number of the last change in the batch.
    pub generation: u64,
    /// Highest number that clients may see before the next batch; not below the generation.
    pub ceiling: u64,
    /// True for the last batch of an orderly end.
    pub clean: bool,
    /// True if the batch may use the space reserved for a full disk: it frees space, or records
    /// external changes.
    pub spare: bool,
}

impl Batch {
    /// Sets a row's value. The last change of a row counts.
    pub fn put(&mut self, key: Key, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    /// Deletes a row. The last change of a row counts.
    pub fn delete(&mut self, key: Key) {
        self.changes.insert(key, None);
    }
}

/// Content of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Schema version of the rows.
    pub schema: u32,
    /// Number of the last stored change.
    pub generation: u64,
    /// Highest number that clients may have seen.
    pub ceiling: u64,
    /// True after an orderly end, and for a store that was never written.
    pub clean: bool,
    /// All rows, ordered by key.
    pub rows: Vec<(Key, Vec<u8>)>,
}

impl Default for Contents {
    /// Returns the content of a new store.
    fn default() -> Self {
        Self { schema: SCHEMA, generation: 0, ceiling: 0, clean: true, rows: Vec::new() }
    }
}

/// Store of rows. Both calls block, a commit until its batch is on disk.
pub trait Store: fmt::Debug + Send {
    /// Returns all content.
    ///
    /// # Errors
    /// The store cannot be read, or its content is not what was written.
    fn load(&mut self) -> Result<Contents, StoreError>;

    /// Stores a batch.
    ///
    /// # Errors
    /// The batch is not stored, and later ones may succeed. After [`StoreError::Unsure`] it is
    /// unknown whether it is stored, and every later call fails.
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError>;
}
