//! Persistence of records in a [`Store`].
//!
//! # Model
//! One writer thread commits changes in batches. Each batch has all rows changed since the last
//! one, as of one moment. A requested change is answered after its batch is on disk
//! ([`Persistence::wait_generation`]). Observed changes before it have been attempted by then
//! ([`Persistence::wait_attempt`]). So a crash loses nothing that a client was told.
//!
//! If a batch fails, all requested changes that are not persisted are rolled back by a new change,
//! and their callers get the error. Observed changes stay and are retried. So do requested changes
//! that other changes depend on. A row that is too large for the store is left out until its object
//! changes again, so that it does not block other rows.
//!
//! A batch may use the space that the store reserves for a full disk if its requested changes only
//! delete objects, or if it has none.
//!
//! Generations are reserved ahead. The store holds a ceiling, and no published generation exceeds
//! it. A clean stop stores the last generation. After any other stop, counting continues above the
//! ceiling. Every object then counts as changed, because a client may have seen a change that was
//! not stored.
//!
//! Volatile fields, derived reference sets and classes that live in memory are not stored. Fields
//! that this version does not know are preserved.
//!
//! # How to test
//! An in-memory [`Store`] outlives the database and can run out of space.

mod copy;
mod error;
mod load;
mod row;
#[cfg(test)]
mod tests;
mod waiter;
mod writer;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::watch;
use toolstack::store::{Store, StoreError};
use xenapi::{ApiError, Date, Value};

use crate::db::{Db, DeriveHook, Random, Tx};
pub use copy::copy;
pub use error::{CloseError, OpenError};
pub use waiter::PersistenceWaiter;
use writer::Writer;

/// Generations reserved at once. More are reserved when half of them are used. So half of this
/// number must be used up, while no batch succeeds, before an unreserved generation is published.
const RESERVED: u64 = 1 << 24;

/// Most failed changes whose error is stored: twice as many as callers can wait for at once.
const FAILED_MAX: usize = 8_192;

/// Persistence of changes. Dropping it without [`Persistence::close`] has the effect of a crash.
#[derive(Debug)]
pub struct Persistence {
    waiter: PersistenceWaiter,
    thread: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

/// State shared by the writer thread and its waiters.
#[derive(Debug, Default)]
struct Shared {
    /// Errors of rolled back changes, by generation.
    failed: Mutex<BTreeMap<u64, ApiError>>,
    /// Last generation of a batch that succeeded or failed.
    tried: AtomicU64,
    writer_stop: Mutex<Option<WriterStop>>,
}

/// Mode in which the writer thread stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterStop {
    /// Stores everything and marks a clean stop.
    Clean,
    /// Stops at once.
    Abrupt,
}

impl Persistence {
    /// Loads the records of a store and starts the writer. Tasks that were under way end as failed
    /// at `now`.
    ///
    /// # Errors
    /// [`OpenError`] if the store cannot be read or written or has an invalid row.
    pub fn open(
        store: Box<dyn Store>,
        random: Random,
        follow: DeriveHook,
        now: Date,
    ) -> Result<(Db, Self), OpenError> {
        Self::open_reserving(RESERVED, store, (random, follow), now)
    }

    /// Does the work of [`Persistence::open`] with this number of reserved generations.
    fn open_reserving(
        reserved: u64,
        mut store: Box<dyn Store>,
        (random, follow): (Random, DeriveHook),
        now: Date,
    ) -> Result<(Db, Self), OpenError> {
        let stored_state = load::read(store.load()?)?;
        let (wake, woken) = sync_channel(1);
        let db = Db::loaded(
            stored_state.generation,
            stored_state.objects,
            wake.clone(),
            (random, follow),
        );
        let db = db.map_err(OpenError::Follows)?;
        let shared = Arc::new(Shared::default());
        let (settled_tx, settled) = watch::channel(());
        let mut writer = Writer::new(db.clone(), store, shared.clone(), (woken, settled_tx));
        writer.begin(reserved, stored_state.ceiling, stored_state.repeated)?;
        db.write_observed(|tx| load::end_tasks(tx, now)).map_err(OpenError::Follows)?;
        let thread = std::thread::Builder::new().name("state".to_owned());
        let thread = thread.spawn(move || writer.run()).map_err(OpenError::Thread)?;
        let thread = Mutex::new(Some(thread));
        let waiter = PersistenceWaiter { db: db.clone(), shared, settled, wake };
        Ok((db, Self { waiter, thread }))
    }

    /// Waits until the requested change of this generation ([`Tx::generation`]) is on disk. Returns
    /// at once for an observed change or a change without stored rows.
    ///
    /// # Errors
    /// `OUT_OF_SPACE` or `INTERNAL_ERROR` if the change could not be stored. It has been rolled
    /// back.
    pub async fn wait_generation(&self, generation: u64) -> Result<(), ApiError> {
        self.waiter.once(|| !self.waiter.db.is_uncommitted(generation)).await?;
        self.waiter.shared.failed().get(&generation).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Waits until the observed changes so far are on disk or have failed. Failed ones are retried,
    /// so a full disk prevents no VM from stopping.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if the writer has died.
    pub async fn wait_attempt(&self) -> Result<(), ApiError> {
        self.waiter.tried().await
    }

    /// Returns a waiter that does not own the writer.
    pub fn waiter(&self) -> PersistenceWaiter {
        self.waiter.clone()
    }

    /// Makes a requested change and waits until it is on disk.
    ///
    /// # Errors
    /// Those of [`Db::change`] and [`Persistence::wait_generation`].
    pub async fn change<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let (made, generation) = self.waiter.db.change(|tx| {
            let generation = tx.generation();
            make(tx).map(|made| (made, generation))
        })?;
        self.wait_generation(generation).await?;
        Ok(made)
    }

    /// Stores everything, marks a clean stop and ends the writer. Blocks until everything is on
    /// disk. Further calls have no effect.
    ///
    /// # Errors
    /// [`CloseError`] if not everything was stored. The next start treats this end as a crash.
    pub fn close(&self) -> Result<(), CloseError> {
        // Volatile values do not survive a restart. Resetting them publishes that, so that clients
        // drop them. The reset cannot fail, because no field derives from them.
        let _ = self.waiter.db.write_observed(reset_volatile);
        self.end(WriterStop::Clean)
    }

    fn end(&self, how: WriterStop) -> Result<(), CloseError> {
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        *lock(&self.waiter.shared.writer_stop) = Some(how);
        // If the channel is full, the writer has a pending notification.
        let _ = self.waiter.wake.try_send(());
        // The panic message is already in the log.
        let ended = thread.join().map_err(|_| CloseError::BrokeOff)?;
        Ok(ended?)
    }

    /// Stops the writer like a kill. Later changes are lost.
    #[cfg(test)]
    pub(crate) fn abandon(&self) {
        let _ = self.end(WriterStop::Abrupt);
    }

    /// Waits until the writer thread has ended without a request.
    pub async fn wait_writer_died(&self) {
        let mut settled = self.waiter.settled.clone();
        while settled.changed().await.is_ok() {}
    }
}

impl Drop for Persistence {
    fn drop(&mut self) {
        let _ = self.end(WriterStop::Abrupt);
    }
}

impl Shared {
    fn failed(&self) -> MutexGuard<'_, BTreeMap<u64, ApiError>> {
        lock(&self.failed)
    }

    /// Rolls back changes that could not be stored. The lock makes waiters wait for the errors.
    fn fail(&self, take_back: impl FnOnce() -> Vec<u64>, why: &ApiError) {
        let mut failed = self.failed();
        failed.extend(take_back().into_iter().map(|generation| (generation, why.clone())));
        while failed.len() > FAILED_MAX {
            failed.pop_first();
        }
    }

    fn end(&self) -> Option<WriterStop> {
        *lock(&self.writer_stop)
    }
}

/// Resets volatile fields. `allowed_operations` is derived, and the progress of a task stays
/// because the task does not restart.
fn reset_volatile(tx: &mut Tx<'_>) -> Result<(), ApiError> {
    for class in xenapi::table::classes() {
        for (number, field) in class.numbers().filter(|(_, field)| field.volatile) {
            if matches!(field.name, "allowed_operations" | "progress") {
                continue;
            }
            let initial: Value = field.initial();
            let view = tx.view();
            let other = view.all(class).filter(|object| object.get(number) != Some(&initial));
            let other: Vec<_> = other.map(|object| object.reference().clone()).collect();
            for reference in other {
                tx.set(&reference, number, initial.clone())?;
            }
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No operation under these locks can leave inconsistent data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
