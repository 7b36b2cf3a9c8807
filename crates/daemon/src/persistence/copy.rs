//! Copy of all records while the daemon serves.

use toolstack::store::{self, Batch, MemoryStore, Store, StoreError};
use xenapi::table::{RecordStorage, classes};

use super::{RESERVED, load, row};
use crate::db::{Db, Object};

/// Returns the records as of now in the text form of an export.
///
/// # Errors
/// Only if a record is too large to be stored, which calls prevent.
pub fn copy(db: &Db) -> Result<Vec<u8>, StoreError> {
    let (generation, rows) = db.read(|view| {
        let stored = classes().iter().filter(|of| of.record_storage == RecordStorage::State);
        let rows: Vec<_> = stored.flat_map(|of| view.all(of)).map(Object::row).collect();
        (view.generation(), rows)
    });
    // Clients may see as many changes before the next copy.
    let ceiling = generation.saturating_add(RESERVED);
    let mut batch = Batch { generation, ceiling, ..Batch::default() };
    for (uuid, row) in &rows {
        batch.put(load::key(row.class.name, uuid), row::write(row));
    }
    drop(rows);
    let mut whole = MemoryStore::default();
    whole.commit(&batch)?;
    let mut text = Vec::new();
    store::export(&mut whole, &mut text)?;
    Ok(text)
}
