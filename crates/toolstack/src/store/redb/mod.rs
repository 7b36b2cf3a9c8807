//! Store in one file, managed by `redb`.
//!
//! The file contains two tables: `head` with numbers by name, and `rows` with values by table, a
//! zero byte and name. The head contains the number of rows and the sum of their digests. So a load
//! detects a file that the disk or another program has changed.
//!
//! `redb` stops using a file after the first failed write. The store then reopens it, and expects
//! the state before the batch. So a full disk costs one batch and no restart. If the failed batch
//! is stored after all, its last flush failed. The kernel reports lost data only once, so later
//! reads prove nothing about the disk.

mod ending;
mod file;
mod reserve;
mod tables;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ::redb::{Database, Error as RedbError};
use rustix::io::Errno;

use super::{Batch, Contents, SCHEMA, Store, StoreError, check};
use reserve::SpaceReserve;
use tables::{Head, StateFileError};

/// Function that opens the database in an existing file.
type Opener = Box<dyn Fn(&Path) -> Result<Database, StateFileError> + Send>;

/// Store in a file.
pub struct RedbStore {
    path: PathBuf,
    opener: Opener,
    /// Open database. `None` after a failure, until the next call.
    database: Option<Database>,
    /// Head after the last batch.
    head: Head,
    /// True if the content of the disk is unknown.
    unsure: bool,
    /// Space for `spare` batches.
    reserve: SpaceReserve,
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RedbStore {
    /// Opens the store in this file, or creates it, readable by its owner only.
    ///
    /// No other process can open it until the store is dropped. Blocks for some seconds at most
    /// while a dead or dying process still has the lock.
    ///
    /// # Errors
    /// Another process has it open, a system call failed, or it is not a store that this version
    /// supports.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if !path.exists() {
            file::create(path, tables::begin)
                .map_err(|state_file_error| to_store_error(path, "create", state_file_error))?;
        }
        file::wait_lock_released(path);
        Self::with_opener(path, Box::new(file::open))
    }

    fn with_opener(path: &Path, opener: Opener) -> Result<Self, StoreError> {
        let (path, head, reserve) = (path.to_owned(), Head::default(), SpaceReserve::beside(path));
        let mut store = Self { path, opener, database: None, head, unsure: false, reserve };
        store.head = match store.open_head() {
            // The repair after an unclean close needs space.
            Err(StoreError::Full { .. }) if store.reserve.give() => store.open_head()?,
            head => head?,
        };
        store.reserve.keep();
        Ok(store)
    }

    /// Opens the file and reads its head.
    fn open_head(&mut self) -> Result<Head, StoreError> {
        let opened = guarded(|| {
            let database = (self.opener)(&self.path)?;
            let head = tables::head(&database)?;
            Ok((database, head))
        });
        let (database, head) = opened
            .map_err(|state_file_error| to_store_error(&self.path, "open", state_file_error))?;
        if head.schema > SCHEMA {
            return Err(StoreError::Newer { path: self.path.clone(), found: head.schema });
        }
        self.database = Some(database);
        Ok(head)
    }

    /// Returns the database in the state after the last batch.
    fn ready(&mut self) -> Result<&Database, StoreError> {
        if !self.unsure && self.database.is_none() && self.open_head()? != self.head {
            self.close();
            self.unsure = true;
        }
        match &self.database {
            Some(database) if !self.unsure => Ok(database),
            _ => Err(StoreError::Unsure { path: self.path.clone() }),
        }
    }

    fn close(&mut self) {
        if let Some(database) = self.database.take() {
            // Ignore assertions of `redb` on closing after a failure.
            let _asserted = catch_unwind(AssertUnwindSafe(|| drop(database)));
        }
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for RedbStore {
    fn load(&mut self) -> Result<Contents, StoreError> {
        let head = self.head;
        let database = self.ready()?;
        let read = guarded(|| tables::rows(database, &head));
        let rows = read.map_err(|state_file_error| {
            self.close();
            to_store_error(&self.path, "read", state_file_error)
        })?;
        let Head { schema, generation, ceiling, clean, .. } = head;
        Ok(Contents { schema, generation, ceiling, clean, rows })
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        check::batch(batch, self.head.generation, self.head.ceiling)?;
        match self.write(batch) {
            Err(StoreError::Full { .. }) if batch.spare && self.reserve.give() => {
                self.write(batch)?;
            }
            written => written?,
        }
        self.reserve.keep();
        Ok(())
    }
}

impl RedbStore {
    fn write(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let before = self.head;
        let database = self.ready()?;
        match guarded(|| tables::write(database, &before, batch)) {
            Ok(after) => {
                self.head = after;
                Ok(())
            }
            Err(state_file_error) => {
                self.close();
                let error = to_store_error(&self.path, "write", state_file_error);
                // If the file cannot be opened now, the next batch tries again.
                match self.ready() {
                    Err(unsure @ StoreError::Unsure { .. }) => Err(unsure),
                    _ => Err(error),
                }
            }
        }
    }
}

/// Runs code of `redb`, which asserts its input: damaged bytes can make it panic.
fn guarded<T>(work: impl FnOnce() -> Result<T, StateFileError>) -> Result<T, StateFileError> {
    let caught = catch_unwind(AssertUnwindSafe(work));
    caught.unwrap_or_else(|payload| Err(StateFileError::Wrong(panic_text(payload.as_ref()))))
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("its structure contradicts itself").to_owned()
}

/// Translates an error for the administrator.
fn to_store_error(
    path: &Path,
    doing: &'static str,
    state_file_error: StateFileError,
) -> StoreError {
    let path = path.to_owned();
    let damaged = |what: String| StoreError::Damaged { path: path.clone(), what };
    match state_file_error {
        StateFileError::Wrong(what) => damaged(what),
        StateFileError::Redb(RedbError::DatabaseAlreadyOpen) => {
            let holder = file::holder(&path);
            StoreError::Taken { path, holder }
        }
        StateFileError::Redb(RedbError::Io(source)) => match source.kind() {
            // No system call returns these: the file is not a state file, or shorter than its
            // header says.
            io::ErrorKind::InvalidData => damaged("it is no state file".to_owned()),
            io::ErrorKind::UnexpectedEof => damaged("it ends too early".to_owned()),
            _ if no_room(&source) => StoreError::Full { path },
            _ => StoreError::Os { path, doing, source },
        },
        StateFileError::Redb(other) => damaged(other.to_string()),
    }
}

fn no_room(error: &io::Error) -> bool {
    // A quota and a process limit count as a full disk.
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
    error.raw_os_error().is_some_and(|code| full.iter().any(|one| one.raw_os_error() == code))
}
