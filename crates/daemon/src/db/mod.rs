//! In-memory database of records.
//!
//! # Model
//! A [`Db`] has a table for each class. [`Db::read`] sees a consistent snapshot. [`Db::change`]
//! applies several writes atomically. Each change has a generation. Each object stores the
//! generations of its creation and last change. So [`View::since`] costs as much as there are
//! changes, without a log.
//!
//! Derived data is updated inside each change. The database maintains the derived reference sets
//! ([`xenapi::table::Field::inverse`]). It calls the [`DeriveHook`] at the end of each
//! change with the writes of that change.
//!
//! There are two kinds of change:
//!
//! - Requested changes ([`Db::change`]) come from clients. A requested change is rolled back if it
//!   cannot be persisted, unless an object that it created is in use by then.
//! - Observed changes ([`Db::write_observed`]) record what happened on the host. They are never
//!   rolled back and are persisted as soon as possible.
//!
//! The writer in [`persistence`](crate::persistence) stores both. Until then the database remembers
//! which rows to store and how to roll back requested changes.
//!
//! # Invariants
//! - Every field of every object fits its type.
//! - `b` is in the derived set of `a` exactly if `b`'s field names `a`.
//! - Generations increase strictly from change to change.
//! - [`View::since`] publishes a created object only after its requested change is persisted. So no
//!   client knows an object that a restart would lose.
//!
//! # Errors
//! [`ApiError`]s as clients see them: `HANDLE_INVALID`, `UUID_INVALID`.
//!
//! # How to test
//! The tests make random changes, some of which fail, and compare the database with plain maps.

mod back_references;
mod bounds;
mod changes;
mod load;
mod lookup;
mod object;
mod pending_writes;
mod reference;
mod rollback;
mod tables;
#[cfg(test)]
pub(crate) mod tests;
mod tombstones;
mod tx;
mod view;
mod write_record;

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;
use xenapi::{ApiError, codes};

pub use changes::Change;
pub(crate) use load::Loaded;
pub use object::Object;
pub(crate) use pending_writes::{Row, WriteBatch};
pub use reference::Ref;
use tables::Tables;
pub use tx::Tx;
pub use view::View;
pub use write_record::WriteRecord;

/// Hook at the end of each change that updates derived fields. [`Tx::touched`] lists the writes.
pub type DeriveHook = fn(&mut Tx<'_>) -> Result<(), ApiError>;

/// Source of 16 random bytes.
pub type Random = fn() -> [u8; 16];

/// Most requested changes that are not persisted yet. More than all calls that may run at once.
/// This bounds the memory for rollbacks.
const UNCOMMITTED_MAX: usize = 4_096;

/// Database of all records. Clones share the records.
#[derive(Clone, Debug)]
pub struct Db {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tables: RwLock<Tables>,
    changed: watch::Sender<u64>,
    follow: DeriveHook,
    random: Random,
    /// Notifies the writer of pending rows. `None` if nothing is persisted.
    wake: Option<SyncSender<()>>,
}

impl Db {
    /// Creates an empty database without persistence. The first change has the generation after
    /// `generation`.
    pub fn new(generation: u64, random: Random, follow: DeriveHook) -> Self {
        Self::of(Tables::new(generation), None, random, follow)
    }

    fn of(
        tables: Tables,
        wake: Option<SyncSender<()>>,
        random: Random,
        follow: DeriveHook,
    ) -> Self {
        let changed = watch::Sender::new(tables.generation);
        let tables = RwLock::new(tables);
        Self { inner: Arc::new(Inner { tables, changed, follow, random, wake }) }
    }

    /// Reads a consistent snapshot. Changes wait meanwhile, so `reader` must not block.
    pub fn read<T>(&self, reader: impl FnOnce(&View<'_>) -> T) -> T {
        reader(&View::of(&self.reading()))
    }

    /// Makes a requested change atomically. Other readers and changes wait meanwhile, so `make`
    /// must not block. The change is rolled back if it cannot be persisted. Before the caller
    /// answers the client, it waits for [`Tx::generation`] with
    /// [`Persistence::wait_generation`](crate::persistence::Persistence::wait_generation).
    ///
    /// # Errors
    /// The error of `make` or of the derive hook. `TOO_MANY_PENDING_TASKS` if too many changes wait
    /// to be persisted. `VALUE_NOT_SUPPORTED` if a record would exceed its size limit. Nothing has
    /// changed then.
    pub fn change<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        self.make(true, make)
    }

    /// Makes an observed change atomically, like [`Db::change`]. It is never rolled back.
    ///
    /// # Errors
    /// The error of `make` or of the derive hook. Nothing has changed then.
    pub fn write_observed<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        self.make(false, make)
    }

    fn make<T>(
        &self,
        asked: bool,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut tables = self.writing();
        if asked && tables.pending.unsettled() >= UNCOMMITTED_MAX {
            return Err(codes::too_many_pending_tasks());
        }
        let mut tx = Tx::begin(&mut tables, self.inner.random, asked);
        let made = make(&mut tx)?;
        (self.inner.follow)(&mut tx)?;
        let ended = tx.end();
        self.notify(ended, tables.pending.is_wanted());
        Ok(made)
    }

    /// Subscribes to changes and to publications of persisted changes. A slow receiver sees several
    /// changes as one.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// Returns whether the change of this generation was requested and is not persisted yet.
    pub(crate) fn is_uncommitted(&self, generation: u64) -> bool {
        self.reading().pending.is_unsettled(generation)
    }

    /// Returns the generation of the last change that must be persisted.
    pub(crate) fn last_persistent(&self) -> u64 {
        self.reading().pending.last_persistent
    }

    /// Takes all rows that changed since the last call, for the writer. With `all`, this includes
    /// rows in which only volatile fields changed.
    pub(crate) fn take(&self, all: bool) -> WriteBatch {
        let mut tables = self.writing();
        let write_batch = tables.pending.take(all);
        // The downgrade keeps the lock, so the rows match the batch's generation.
        let tables = RwLockWriteGuard::downgrade(tables);
        write_batch.with_rows(&tables)
    }

    /// Marks a batch as persisted.
    pub(crate) fn stored(&self, write_batch: &WriteBatch) {
        let mut tables = self.writing();
        if tables.pending.mark_committed(write_batch.generation()) {
            let generation = tables.generation;
            self.inner.changed.send_replace(generation);
        }
    }

    /// Sets the generation at which the writer must reserve more generations.
    pub(crate) fn reserve_at(&self, generation: u64) {
        self.writing().pending.reserve_at = Some(generation);
    }

    /// Handles a batch that cannot be persisted. Rolls back all uncommitted requested changes,
    /// except those in use, and returns their generations. The other rows wait for the next batch.
    pub(crate) fn failed(&self, write_batch: WriteBatch) -> Vec<u64> {
        let mut tables = self.writing();
        let reverses = tables.pending.give_back(write_batch);
        let mut generations = Vec::new();
        let mut tx = Tx::begin(&mut tables, self.inner.random, false);
        // Roll back the latest change first.
        for (generation, rollback) in reverses.into_iter().rev() {
            if rollback.apply(&mut tx) {
                generations.push(generation);
            }
        }
        // The hook has succeeded for such records before, so it does not fail here. If it did, only
        // derived fields would be wrong.
        let _ = (self.inner.follow)(&mut tx);
        // Changes that stay are published now, even if nothing else has changed.
        let ended = tx.end().unwrap_or(tables.generation);
        self.notify(Some(ended), false);
        generations
    }

    /// Notifies subscribers and the writer after a change.
    fn notify(&self, ended: Option<u64>, wanted: bool) {
        if let Some(generation) = ended {
            self.inner.changed.send_replace(generation);
        }
        if let Some(wake) = &self.inner.wake
            && wanted
        {
            // If the channel is full, the writer has a pending notification. If it is closed, the
            // writer has stopped.
            let _ = wake.try_send(());
        }
    }

    fn reading(&self) -> RwLockReadGuard<'_, Tables> {
        // A change that panicked has been undone by `Tx`, so the tables are consistent.
        self.inner.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Tables> {
        self.inner.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}
