//! Writer thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::watch;
use toolstack::store::{Batch, Key, Store, StoreError, VALUE_BYTES_MAX};
use xenapi::{ApiError, codes};

use super::load::repeated_key;
use super::{Shared, WriterStop, load, row};
use crate::db::{Db, WriteBatch};

/// Delay before a failed batch is retried. No event reports free space on a disk.
const RETRY: Duration = Duration::from_secs(5);

/// New values by row. `None` deletes the row.
type Changes = BTreeMap<Key, Option<Vec<u8>>>;

/// Writer of changes.
pub(super) struct Writer {
    db: Db,
    store: Box<dyn Store>,
    shared: Arc<Shared>,
    woken: Receiver<()>,
    settled_tx: watch::Sender<()>,
    /// Stored ceiling of generations.
    ceiling: u64,
    /// Number of generations reserved at once.
    reserved: u64,
    /// Error of the last batch, if it failed.
    failing: Option<String>,
    /// Rows that are too large for the store in their current state.
    left_out: BTreeSet<Key>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Writer {
    pub(super) fn new(
        db: Db,
        store: Box<dyn Store>,
        shared: Arc<Shared>,
        (woken, settled_tx): (Receiver<()>, watch::Sender<()>),
    ) -> Self {
        let (failing, left_out) = (None, BTreeSet::new());
        Self { db, store, shared, woken, settled_tx, ceiling: 0, reserved: 0, failing, left_out }
    }

    /// Reserves the first generations above this ceiling and stores `repeated`, before anything is
    /// published.
    pub(super) fn begin(
        &mut self,
        reserved: u64,
        ceiling: u64,
        repeated: Option<u64>,
    ) -> Result<(), StoreError> {
        let generation = self.db.read(|view| view.generation());
        (self.reserved, self.ceiling) = (reserved, ceiling);
        let ceiling = self.next_ceiling(generation, false);
        let mut batch = Batch { generation, ceiling, spare: true, ..Batch::default() };
        if let Some(repeated) = repeated {
            batch.put(repeated_key(), repeated.to_string().into_bytes());
        }
        self.store.commit(&batch)?;
        self.has_reserved(ceiling);
        Ok(())
    }

    /// Stores batches until the stop.
    pub(super) fn run(mut self) -> Result<(), StoreError> {
        loop {
            let woken = match self.failing {
                None => self.woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => self.woken.recv_timeout(RETRY),
            };
            match (self.shared.end(), woken) {
                (Some(WriterStop::Abrupt), _) | (None, Err(RecvTimeoutError::Disconnected)) => {
                    return Ok(());
                }
                (Some(WriterStop::Clean), _) => return self.write(true),
                // The error is logged and stored in `failing`.
                (None, _) => drop(self.write(false)),
            }
        }
    }

    /// Stores one batch. With `clean`, includes volatile changes and marks a clean stop.
    fn write(&mut self, clean: bool) -> Result<(), StoreError> {
        let (write_batch, changes) = self.take(clean);
        let ceiling = self.next_ceiling(write_batch.generation(), clean);
        if changes.is_empty() && ceiling == self.ceiling && !clean {
            self.tried(write_batch.generation());
            return Ok(());
        }
        self.left_out.retain(|key| !changes.contains_key(key));
        let batch = Batch {
            changes,
            generation: write_batch.generation(),
            ceiling,
            clean: clean && self.left_out.is_empty(),
            spare: clean || !write_batch.grows(),
        };
        let (committed, generation) = (self.store.commit(&batch), write_batch.generation());
        match &committed {
            Ok(()) => {
                if self.failing.take().is_some() {
                    tracing::info!("changes are stored again");
                }
                self.db.stored(&write_batch);
                self.has_reserved(ceiling);
            }
            Err(error) => {
                let why = error.to_string();
                if self.failing.as_ref() != Some(&why) {
                    tracing::error!("cannot store changes; they are undone: {why}");
                }
                self.failing = Some(why);
                self.shared.fail(|| self.db.failed(write_batch), &to_api_error(error));
            }
        }
        self.tried(generation);
        committed
    }

    /// Notifies waiters that all changes up to this generation were stored or have failed.
    fn tried(&self, generation: u64) {
        self.shared.tried.store(generation, Ordering::Release);
        self.settled_tx.send_replace(());
    }

    /// Takes a batch without rows that are too large.
    fn take(&mut self, all: bool) -> (WriteBatch, Changes) {
        loop {
            let write_batch = self.db.take(all);
            let changes = changes(&write_batch);
            let unfit = |value: &Option<Vec<u8>>| {
                value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES_MAX)
            };
            let unfit: Vec<Key> = changes
                .iter()
                .filter(|(_, value)| unfit(value))
                .map(|(key, _)| key.clone())
                .collect();
            if unfit.is_empty() {
                return (write_batch, changes);
            }
            self.leave_out(write_batch, unfit);
        }
    }

    /// The request that made a row too large is unknown, so all requested changes in the batch
    /// fail.
    fn leave_out(&mut self, mut write_batch: WriteBatch, unfit: Vec<Key>) {
        for key in &unfit {
            tracing::error!(
                "`{key}` is too large; its stored version stays until it changes again"
            );
            write_batch.leave_out(|class, uuid| load::key(class, uuid) == *key);
        }
        let why = codes::internal("a record became too large to be stored: the log says which");
        self.left_out.extend(unfit);
        self.shared.fail(|| self.db.failed(write_batch), &why);
        self.settled_tx.send_replace(());
    }

    fn next_ceiling(&self, generation: u64, clean: bool) -> u64 {
        let used = generation.saturating_add(self.reserved / 2) > self.ceiling;
        let more = generation.saturating_add(self.reserved);
        if used && !clean { more } else { self.ceiling.max(generation) }
    }

    fn has_reserved(&mut self, ceiling: u64) {
        self.ceiling = ceiling;
        self.db.reserve_at(ceiling.saturating_sub(self.reserved / 2).saturating_add(1));
    }
}

fn changes(write_batch: &WriteBatch) -> Changes {
    let rows = write_batch.rows().iter();
    rows.map(|row| (load::key(row.class, &row.uuid), row.row.as_ref().map(row::write))).collect()
}

/// Converts a store error to the API error of a requested change.
fn to_api_error(error: &StoreError) -> ApiError {
    match error {
        StoreError::Full { path } => codes::out_of_space(path.display().to_string()),
        other => codes::internal(other.to_string()),
    }
}
