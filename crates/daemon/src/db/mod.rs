//! The records, in memory.
//!
//! # Model
//! A [`Db`] holds a table for each class. [`Db::read`] looks at all of it at one moment;
//! [`Db::change`] makes several writes that are seen together or not at all. A change has a
//! generation; each object knows in which it was made and in which it was changed last, so that
//! "what has changed since" costs what has changed, and no log is kept ([`View::since`]).
//!
//! What follows from a write follows here, once: sets of references are kept by the database
//! ([`xenapi::table::Field::inverse`]), and [`Follow`] is called at the end of each change with
//! what it has touched.
//!
//! # Invariants
//! - Every field of every object fits its type.
//! - `b` is in the inverse field of `a` exactly if `b`'s field names `a`.
//! - Generations of different changes differ, and later ones are larger.
//!
//! # Errors
//! [`ApiError`]s as clients see them: `HANDLE_INVALID`, `UUID_INVALID`.
//!
//! # How to test
//! The tests make random changes, some of which fail, and compare everything with plain maps.

mod changes;
mod inverse;
mod object;
mod reference;
mod tables;
#[cfg(test)]
mod tests;
mod tx;
mod view;

use std::sync::{PoisonError, RwLock};

use tokio::sync::watch;
use xenapi::ApiError;

pub use changes::Change;
pub use object::Object;
pub use reference::Ref;
use tables::Tables;
pub use tx::Tx;
pub use view::View;

/// What is to follow at the end of a change from what it has touched: [`Tx::touched`].
pub type Follow = fn(&mut Tx<'_>) -> Result<(), ApiError>;

/// Sixteen random bytes.
pub type Random = fn() -> [u8; 16];

/// All records.
#[derive(Debug)]
pub struct Db {
    tables: RwLock<Tables>,
    changed: watch::Sender<u64>,
    follow: Follow,
    random: Random,
}

impl Db {
    /// Without any record. The first change's generation comes after `generation`.
    pub fn new(generation: u64, random: Random, follow: Follow) -> Self {
        let tables = RwLock::new(Tables::new(generation));
        Self { tables, changed: watch::Sender::new(generation), follow, random }
    }

    /// Looks at everything at one moment. Changes wait meanwhile, so `look` must not.
    pub fn read<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        // A change that panicked was taken back.
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        look(&View::of(&tables))
    }

    /// Makes a change, whole or not at all; everybody else waits meanwhile, so `make` must not.
    ///
    /// # Errors
    /// That of `make` or of what follows; nothing has changed then.
    pub fn change<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let mut tx = Tx::begin(&mut tables, self.random);
        let made = make(&mut tx)?;
        (self.follow)(&mut tx)?;
        if let Some(generation) = tx.end() {
            self.changed.send_replace(generation);
        }
        Ok(made)
    }

    /// Tells the generation of each change as it is made; late ones are told as one.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
