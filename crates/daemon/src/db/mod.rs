//! The records, in memory.
//!
//! # Model
//! A [`Db`] holds a table for each class. [`Db::read`] looks at all of it at one moment;
//! [`Db::change`] makes several writes that are seen together or not at all. A change has a
//! generation; each object knows in which it was made and in which it was changed last, so that
//! "what has changed since" costs what has changed, and no log is kept ([`View::since`]).
//!
//! What follows from a write follows here, once: sets of references are kept by the database
//! ([`xenapi::table::Field::back_references`]), and [`DeriveHook`] is called at the end of each change with
//! what it has touched.
//!
//! There are two kinds of change. What [`Db::change`] makes was asked for: it is taken back if it
//! cannot be stored, unless what it has made is used by then. What [`Db::write_observed`] makes tells what has become of the world: it stays, and is
//! stored as soon as that can be. Who stores both is in [`durable`](crate::persistence); until then
//! the database remembers what is to be stored and how the former is taken back.
//!
//! # Invariants
//! - Every field of every object fits its type.
//! - `b` is in the inverse field of `a` exactly if `b`'s field names `a`.
//! - Generations of different changes differ, and later ones are larger.
//! - What was made because somebody asked is told by [`View::since`] once it is stored. So nobody
//!   knows of an object that a restart would forget.
//!
//! # Errors
//! [`ApiError`]s as clients see them: `HANDLE_INVALID`, `UUID_INVALID`.
//!
//! # How to test
//! The tests make random changes, some of which fail, and compare everything with plain maps.

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
pub(crate) mod testing;
#[cfg(test)]
mod tests;
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

/// What is to follow at the end of a change from what it has touched: [`Tx::write_record`].
pub type DeriveHook = fn(&mut Tx<'_>) -> Result<(), ApiError>;

/// Sixteen random bytes.
pub type Random = fn() -> [u8; 16];

/// Changes that were asked for and not stored yet, at most: more than all calls that are let in at
/// once. It bounds what is kept to take them back.
const UNSETTLED_MAX: usize = 4_096;

/// All records. Clones share them.
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
    /// Tells who stores that there is something to store; none: nobody stores.
    wake: Option<SyncSender<()>>,
}

impl Db {
    /// Without any record, and none is ever stored. The first change's generation comes after
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

    /// Looks at everything at one moment. Changes wait meanwhile, so `look` must not.
    pub fn read<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        look(&View::of(&self.reading()))
    }

    /// Makes a change that was asked for, whole or not at all; everybody else waits meanwhile, so
    /// `make` must not. It is taken back if it cannot be stored: [`Tx::generation`] says for what
    /// to wait with [`Persistence::wait_generation`](crate::persistence::Persistence::wait_generation) before it is answered.
    ///
    /// # Errors
    /// That of `make` or of what follows; nothing has changed then. `TOO_MANY_PENDING_TASKS`: too
    /// many changes wait to be stored. `VALUE_NOT_SUPPORTED`: a record would outgrow its bound.
    pub fn change<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        self.make(true, make)
    }

    /// Records what has become of the world, whole or not at all, as [`Db::change`] does. It is
    /// never taken back.
    ///
    /// # Errors
    /// That of `make` or of what follows; nothing has changed then.
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
        if asked && tables.pending.unsettled() >= UNSETTLED_MAX {
            return Err(codes::too_many_pending_tasks());
        }
        let mut tx = Tx::begin(&mut tables, self.inner.random, asked);
        let made = make(&mut tx)?;
        (self.inner.follow)(&mut tx)?;
        let ended = tx.end();
        self.tell(ended, tables.pending.is_wanted());
        Ok(made)
    }

    /// Tells of each change as it is made, and of what is told because it is stored now; late ones
    /// are told as one.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// Whether the change of this generation was asked for and is not stored yet.
    pub(crate) fn is_uncommitted(&self, generation: u64) -> bool {
        self.reading().pending.is_unsettled(generation)
    }

    /// The last change of which something is to be stored, asked for or noted.
    pub(crate) fn last_persistent(&self) -> u64 {
        self.reading().pending.kept
    }

    /// What is to be stored now: everything that has changed since it was taken last.
    pub(crate) fn take(&self, all: bool) -> WriteBatch {
        let mut tables = self.writing();
        let write_batch = tables.pending.take(all);
        // Nobody changes anything between the taking and the look.
        let tables = RwLockWriteGuard::downgrade(tables);
        write_batch.looked_up(&tables)
    }

    /// What was taken is stored.
    pub(crate) fn stored(&self, write_batch: &WriteBatch) {
        let mut tables = self.writing();
        if tables.pending.mark_committed(write_batch.generation()) {
            let generation = tables.generation;
            self.inner.changed.send_replace(generation);
        }
    }

    /// More generations are to be reserved when this one is reached.
    pub(crate) fn reserve_at(&self, generation: u64) {
        self.writing().pending.reserve_at = Some(generation);
    }

    /// What was taken cannot be stored: all that was asked for and is not stored is taken back, but
    /// what is used since, and the rest waits. The generations of what was taken back.
    pub(crate) fn failed(&self, write_batch: WriteBatch) -> Vec<u64> {
        let mut tables = self.writing();
        let reverses = tables.pending.give_back(write_batch);
        let mut generations = Vec::new();
        let mut tx = Tx::begin(&mut tables, self.inner.random, false);
        // What was asked for last goes first.
        for (generation, rollback) in reverses.into_iter().rev() {
            if rollback.apply(&mut tx) {
                generations.push(generation);
            }
        }
        // What follows was worked out for such records before: it does not fail. If it did, only
        // what is shown as possible would be wrong.
        let _ = (self.inner.follow)(&mut tx);
        // What stays is told from now on, even if nothing else has changed.
        let ended = tx.end().unwrap_or(tables.generation);
        self.tell(Some(ended), false);
        generations
    }

    /// A change has ended.
    fn tell(&self, ended: Option<u64>, wanted: bool) {
        if let Some(generation) = ended {
            self.inner.changed.send_replace(generation);
        }
        if let Some(wake) = &self.inner.wake
            && wanted
        {
            // Full: who stores has been told and has not looked yet. Gone: nobody stores any more.
            let _ = wake.try_send(());
        }
    }

    fn reading(&self) -> RwLockReadGuard<'_, Tables> {
        // A change that panicked was taken back.
        self.inner.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Tables> {
        self.inner.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}
