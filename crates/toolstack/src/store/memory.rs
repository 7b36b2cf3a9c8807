//! In-memory store, for tests and the simulator.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Batch, Contents, Key, Store, StoreError, check};

/// Rows in memory. Clones share them, so a clone acts as a reopened file.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    generation: u64,
    ceiling: u64,
    clean: bool,
    rows: BTreeMap<Key, Vec<u8>>,
    /// Bytes of all keys and values.
    bytes: usize,
    /// Capacity in bytes; `None` for no limit.
    room: Option<usize>,
}

impl Default for State {
    fn default() -> Self {
        let Contents { generation, ceiling, clean, .. } = Contents::default();
        Self { generation, ceiling, clean, rows: BTreeMap::new(), bytes: 0, room: None }
    }
}

impl State {
    fn bytes_after(&self, batch: &Batch) -> usize {
        batch.changes.iter().fold(self.bytes, |bytes, (key, value)| {
            let size = |value: &Vec<u8>| check::row_bytes(key, value);
            let gone = self.rows.get(key).map_or(0, size);
            bytes.saturating_sub(gone).saturating_add(value.as_ref().map_or(0, size))
        })
    }
}

impl MemoryStore {
    /// Sets the capacity for keys and values in bytes; `None` for no limit. A batch beyond it fails
    /// as on a full disk.
    pub fn set_room(&self, room: Option<usize>) {
        self.locked(|state| state.room = room);
    }

    fn locked<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // No work under the lock can panic, so the state is consistent.
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Contents, StoreError> {
        Ok(self.locked(|state| Contents {
            generation: state.generation,
            ceiling: state.ceiling,
            clean: state.clean,
            rows: state.rows.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            ..Contents::default()
        }))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.locked(|state| {
            check::batch(batch, state.generation, state.ceiling)?;
            let bytes = state.bytes_after(batch);
            if state.room.is_some_and(|room| room < bytes) {
                return Err(StoreError::Full { path: PathBuf::from("memory") });
            }
            for (key, value) in &batch.changes {
                match value {
                    Some(value) => state.rows.insert(key.clone(), value.clone()),
                    None => state.rows.remove(key),
                };
            }
            let Batch { generation, ceiling, clean, .. } = *batch;
            (state.generation, state.ceiling, state.clean) = (generation, ceiling, clean);
            state.bytes = bytes;
            Ok(())
        })
    }
}
