//! What outlives the daemon: rows of bytes under keys, written in batches.
//!
//! # Words
//! - **Row**: a value under a [`Key`], which is a table and a name in it. What the bytes mean is
//!   known to whoever writes them.
//! - **Batch**: rows that are put and rows that go, together with the counters of events. It is
//!   stored whole or not at all, and is on disk when [`Store::commit`] returns.
//! - **Generation**: number of a change. **Ceiling**: numbers up to it may have been told to
//!   clients, so that after an unclean end counting goes on above it. Neither ever goes back.
//! - **Clean**: the batch was the last of an orderly end, and nothing in memory was newer.
//!
//! # Model
//! A store belongs to one thread, which gathers changes while the batch before them is written.
//! [`RedbStore`] keeps a file, [`MemoryStore`] nothing. Both pass the same tests (`tests/conformance.rs`).
//!
//! Beside its file, [`RedbStore`] keeps room that only batches use that are [`spare`](Batch::spare), once
//! there is no other: so that on a full disk objects still go, and machines still stop.
//!
//! # Errors
//! [`StoreError`] names the file, the cause and what to do. After an error of a commit later ones
//! may succeed, and the batch is not there if one does. If it is there after all, every later call
//! is [`StoreError::Unsure`].
//!
//! # Invariants
//! - A file that is damaged, foreign or of a newer version is refused, and no row of it changes.
//! - What is not in a batch does not change, by whatever way the process or the machine ends.

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
pub use export::{export, import};
pub use memory::MemoryStore;
pub use redb::RedbStore;

/// Version of what the rows mean. A store of a newer one is refused.
pub const SCHEMA: u32 = 1;
/// Most bytes of a table's name.
pub const TABLE_BYTES_MAX: usize = 64;
/// Most bytes of a row's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Most bytes of a value: fifty times what one call can bring in.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// Most bytes of keys and values in a batch: an import of a whole host's state is one.
pub const BATCH_BYTES_MAX: usize = 1 << 30;

/// Where a row is. In order of tables, then of names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its table, as `obj/VM`: 1 to [`TABLE_BYTES_MAX`] bytes without control characters.
    pub table: Cow<'static, str>,
    /// Its name there: 1 to [`NAME_BYTES_MAX`] bytes without control characters.
    pub name: String,
}

impl Key {
    /// The row `name` of `table`.
    pub fn new(table: impl Into<Cow<'static, str>>, name: impl Into<String>) -> Self {
        Self { table: table.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// Changes that are stored together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// By row what it shall be; `None`: it goes, if it is there.
    pub changes: BTreeMap<Key, Option<Vec<u8>>>,
    /// Number of the last change in it.
    pub generation: u64,
    /// Last number that anybody may be told before the next batch; not below the generation.
    pub ceiling: u64,
    /// Nothing follows: this is an orderly end.
    pub clean: bool,
    /// It may use the room that is kept for a full disk: it makes room, or tells what has become
    /// of the world.
    pub spare: bool,
}

impl Batch {
    /// A row's new value. The last word on a row holds.
    pub fn put(&mut self, key: Key, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    /// A row that goes. The last word on a row holds.
    pub fn delete(&mut self, key: Key) {
        self.changes.insert(key, None);
    }
}

/// All that a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Version of what the rows mean.
    pub schema: u32,
    /// Number of the last change that was stored.
    pub generation: u64,
    /// Last number that anybody may have been told.
    pub ceiling: u64,
    /// The last end was an orderly one. Also true of a store that was never written to.
    pub clean: bool,
    /// Every row, in order of keys.
    pub rows: Vec<(Key, Vec<u8>)>,
}

impl Default for Contents {
    /// Those of a new store.
    fn default() -> Self {
        Self { schema: SCHEMA, generation: 0, ceiling: 0, clean: true, rows: Vec::new() }
    }
}

/// Keeps rows. Both calls block, a commit until its batch is on disk.
pub trait Store: fmt::Debug + Send {
    /// All that is there.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    fn load(&mut self) -> Result<Contents, StoreError>;

    /// Stores a batch.
    ///
    /// # Errors
    /// The batch is not there then, and later ones may succeed; after [`StoreError::Unsure`]
    /// nobody knows, and every later call fails.
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError>;
}
