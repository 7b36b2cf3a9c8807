//! Loading of stored objects.

use std::sync::mpsc::SyncSender;

use xenapi::table::Class;
use xenapi::{ApiError, Value};

use super::object::UnknownFields;
use super::tables::Tables;
use super::write_record::Undo;
use super::{Db, DeriveHook, Object, Random, Ref, Tx, back_references};

/// A stored object. Its derived reference sets are empty and are filled at load.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) class: &'static Class,
    pub(crate) reference: Ref,
    /// Creation order among all objects.
    pub(crate) age: u64,
    pub(crate) made: u64,
    pub(crate) changed: u64,
    pub(crate) fields: Vec<Value>,
    pub(crate) unknown: UnknownFields,
}

impl Db {
    /// Creates a database with these stored objects as of `generation`. Later changes must be
    /// persisted; `wake` notifies the writer. Loading itself publishes no change.
    ///
    /// # Errors
    /// The error of the derive hook.
    pub(crate) fn loaded(
        generation: u64,
        mut objects: Vec<Loaded>,
        wake: SyncSender<()>,
        (random, follow): (Random, DeriveHook),
    ) -> Result<Self, ApiError> {
        let mut tables = Tables::new(generation);
        objects.sort_by_key(|object| object.age);
        let mut made = Vec::new();
        for Loaded { class, reference, age, made: since, changed, fields, unknown } in objects {
            made.push(Undo::Made(class, reference.clone()));
            let mut object = Object::new(class, reference, age, fields);
            (object.unknown, object.made, object.changed) = (unknown, since, changed);
            tables.put(object);
        }
        gather(&mut tables, &made);
        let mut tx = Tx::begin(&mut tables, random, false);
        tx.made(made);
        follow(&mut tx)?;
        tx.commit_silently();
        tables.pending.storing = true;
        Ok(Self::of(tables, Some(wake), random, follow))
    }
}

/// Fills the derived reference sets, ordered by the age of the referencing objects.
fn gather(tables: &mut Tables, made: &[Undo]) {
    for done in made {
        let (class, reference) = done.object();
        let Some(object) = tables.get(class, reference.as_str()) else { continue };
        for (set, holder) in back_references::links(object.class, &object.fields) {
            if let Some(members) = tables.members(set, &holder) {
                members.push(reference.value());
            }
        }
    }
}
