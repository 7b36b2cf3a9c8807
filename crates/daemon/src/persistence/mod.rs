//! What outlives the daemon: the records, in a [`Store`].
//!
//! # Model
//! One thread stores. It takes everything that has changed, as it is at one moment, and commits it
//! as one batch; what changes meanwhile is in the next. Whoever has asked for a change is answered
//! when the batch that holds it is on disk ([`Persistence::wait_generation`]), and what was noted on the way has
//! been in one ([`Persistence::wait_attempt`]): a crash forgets nothing that somebody has been told.
//!
//! If a batch cannot be stored, every change that was asked for and is not stored is taken back, as
//! a new change, and who asked is told why. What was noted stays, and is tried again; so does what
//! somebody has asked for and others use since. A row that no store takes is left out until its
//! object changes again: it must not keep others from being stored.
//!
//! A batch in which nobody asked for more than an end of objects may use the room that the store
//! keeps for a full disk.
//!
//! Generations are reserved ahead: the store holds a ceiling that none of those told to anybody
//! passes. A clean end stores the last one itself. After any other end, counting goes on above the
//! ceiling, and every object counts as changed there: somebody may have been told of a change that
//! was not stored.
//!
//! Fields that are true of the moment only, sets of references, which follow, and classes that are
//! kept in memory are not stored. A field that this version does not know is kept as it is.
//!
//! # How to test
//! A [`Store`] in memory survives the database over it, and can be made too small.

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
pub use error::{CloseError, OpenError};
pub use waiter::PersistenceWaiter;
use writer::Writer;

/// Generations that are reserved at once. More are when half of them are used, so that half of
/// this would have to change while nothing can be stored before one is told that is not reserved.
const RESERVED: u64 = 1 << 24;

/// Changes that could not be stored, of which is remembered why: twice as many as can be waited
/// for at once.
const FAILED_MAX: usize = 8_192;

/// Stores what changes. Dropped without [`Persistence::close`] it leaves what a crash would leave.
#[derive(Debug)]
pub struct Persistence {
    waiter: PersistenceWaiter,
    thread: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

/// What the thread that stores and those who wait for it have in common.
#[derive(Debug, Default)]
struct Shared {
    /// By generation, why a change was taken back.
    failed: Mutex<BTreeMap<u64, ApiError>>,
    /// The last generation of a batch that was stored, or could not be.
    tried: AtomicU64,
    writer_stop: Mutex<Option<WriterStop>>,
}

/// How the thread that stores shall end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterStop {
    /// After everything is stored, with the mark of a clean end.
    Clean,
    /// As it is.
    Abrupt,
}

impl Persistence {
    /// The records of a store. Tasks that were under way count as failed `now`.
    ///
    /// # Errors
    /// The store cannot be read or written, or a row in it is none of ours.
    pub fn open(
        store: Box<dyn Store>,
        random: Random,
        follow: DeriveHook,
        now: Date,
    ) -> Result<(Db, Self), OpenError> {
        Self::open_reserving(RESERVED, store, (random, follow), now)
    }

    /// As [`Persistence::open`], with so many generations reserved at once.
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
        let (told, settled) = watch::channel(());
        let mut writer = Writer::new(db.clone(), store, shared.clone(), (woken, told));
        writer.begin(reserved, stored_state.ceiling, stored_state.repeated)?;
        db.write_observed(|tx| load::end_tasks(tx, now)).map_err(OpenError::Follows)?;
        let thread = std::thread::Builder::new().name("state".to_owned());
        let thread = thread.spawn(move || writer.run()).map_err(OpenError::Thread)?;
        let thread = Mutex::new(Some(thread));
        let waiter = PersistenceWaiter { db: db.clone(), shared, settled, wake };
        Ok((db, Self { waiter, thread }))
    }

    /// Waits until the change of this generation ([`Tx::generation`]) is on disk. One that was only
    /// noted, or of which nothing is stored, is not waited for.
    ///
    /// # Errors
    /// `OUT_OF_SPACE`, `INTERNAL_ERROR`: it cannot be stored, and was taken back.
    pub async fn wait_generation(&self, generation: u64) -> Result<(), ApiError> {
        self.waiter.once(|| !self.waiter.db.is_uncommitted(generation)).await?;
        self.waiter.shared.failed().get(&generation).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Waits until what has been noted so far is on disk, or could not be stored: that is tried
    /// again, and a full disk keeps nobody from stopping a machine.
    ///
    /// # Errors
    /// `INTERNAL_ERROR`: nobody stores any more.
    pub async fn wait_attempt(&self) -> Result<(), ApiError> {
        self.waiter.tried().await
    }

    /// Whoever waits without holding this.
    pub fn waiter(&self) -> PersistenceWaiter {
        self.waiter.clone()
    }

    /// Makes a change that was asked for, and waits until it is on disk.
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

    /// Stores everything and marks it as a clean end; nothing is stored after it. Blocks until it
    /// is on disk. A second time it does nothing.
    ///
    /// # Errors
    /// It cannot be stored: the next start takes this end for a crash.
    pub fn close(&self) -> Result<(), CloseError> {
        // What is true of the moment only is not true after a restart. This is told as a change
        // now, so that nobody holds on to it. What follows from no field cannot fail.
        let _ = self.waiter.db.write_observed(forget_the_moment);
        self.end(WriterStop::Clean)
    }

    fn end(&self, how: WriterStop) -> Result<(), CloseError> {
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        *lock(&self.waiter.shared.writer_stop) = Some(how);
        // Full: it has been woken and has not looked yet.
        let _ = self.waiter.wake.try_send(());
        // It panicked, and has told where.
        let ended = thread.join().map_err(|_| CloseError::BrokeOff)?;
        Ok(ended?)
    }

    /// Nothing is stored from here on, as after a kill; what the runtime still does is lost.
    #[cfg(test)]
    pub(crate) fn abandon(&self) {
        let _ = self.end(WriterStop::Abrupt);
    }

    /// Ends when nobody stores any more, without having been told to end.
    pub async fn writer_died(&self) {
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

    /// Takes back what could not be stored. Who asks about it meanwhile waits for the answer.
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

/// Puts fields back that hold what is true of the moment only. What may be done follows, and how
/// far a task is stays, for it is not restarted.
fn forget_the_moment(tx: &mut Tx<'_>) -> Result<(), ApiError> {
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
    // Nothing that is done under these locks leaves them half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
