//! Rows to persist, and uncommitted requested changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xenapi::Value;
use xenapi::table::{Class, RecordStorage};

use super::object::UnknownFields;
use super::rollback::Rollback;
use super::tables::Tables;
use super::write_record::Undo;
use super::{Object, Ref};

/// Rows by class and UUID, with the object that had the UUID last.
type Rows = BTreeMap<(&'static str, String), Ref>;

/// Rows to persist and uncommitted requested changes.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    /// Whether a writer persists changes.
    pub(super) storing: bool,
    rows: Rows,
    /// Rows in which only volatile fields changed. They are persisted at a clean stop only.
    later: Rows,
    uncommitted: BTreeMap<u64, Rollback>,
    /// Uncommitted changes that created an object. They are not published.
    hidden: BTreeSet<u64>,
    /// Uncommitted requested changes that do not free space.
    growing: BTreeSet<u64>,
    /// Generation at which the writer must reserve more generations.
    pub(super) reserve_at: Option<u64>,
    generation: u64,
    /// Generation of the last change that must be persisted.
    pub(super) last_persistent: u64,
}

impl PendingWrites {
    pub(super) fn unsettled(&self) -> usize {
        self.uncommitted.len()
    }

    pub(super) fn is_unsettled(&self, generation: u64) -> bool {
        self.uncommitted.contains_key(&generation)
    }

    /// Returns the first generation that is not published.
    pub(super) fn hidden(&self) -> Option<u64> {
        self.hidden.first().copied()
    }

    /// Returns whether the writer has work.
    pub(super) fn is_wanted(&self) -> bool {
        !self.rows.is_empty() || self.reserve_at.is_some_and(|at| self.generation >= at)
    }

    /// Takes the rows to persist. With `all`, includes rows in which only volatile fields changed.
    pub(super) fn take(&mut self, all: bool) -> WriteBatch {
        let mut keys = std::mem::take(&mut self.rows);
        if all {
            keys.append(&mut self.later);
        }
        WriteBatch { keys, rows: Vec::new(), generation: 0, grows: !self.growing.is_empty() }
    }

    /// Takes back a batch that could not be persisted. Returns the rollbacks of all uncommitted
    /// requested changes, oldest first.
    pub(super) fn give_back(&mut self, write_batch: WriteBatch) -> Vec<(u64, Rollback)> {
        for (key, reference) in write_batch.keys {
            self.rows.entry(key).or_insert(reference);
        }
        self.hidden.clear();
        self.growing.clear();
        std::mem::take(&mut self.uncommitted).into_iter().collect()
    }

    /// Marks all changes up to this generation as persisted. Returns whether this publishes more
    /// changes.
    pub(super) fn mark_committed(&mut self, generation: u64) -> bool {
        let later = generation.saturating_add(1);
        self.uncommitted = self.uncommitted.split_off(&later);
        let hidden = self.hidden.split_off(&later);
        let publishes = hidden.len() < self.hidden.len();
        self.hidden = hidden;
        self.growing = self.growing.split_off(&later);
        publishes
    }
}

/// Adds the rows of a change that ends with this generation. Returns whether the change needs a
/// rollback.
pub(super) fn add(tables: &mut Tables, asked: bool, generation: u64, undo: &[Undo]) -> bool {
    let (mut kept, mut makes, mut destroys) = (false, false, false);
    for done in undo {
        let stays = match done {
            Undo::Set(field, ..) => !is_volatile(field.class(), field.at()),
            Undo::Touched(..) => false,
            _ => true,
        };
        let Some((class, uuid)) = row(tables, done) else { continue };
        let key = (class.name, uuid);
        let reference = done.object().1.clone();
        if stays {
            kept = true;
            makes |= matches!(done, Undo::Made(..));
            destroys |= matches!(done, Undo::Destroyed(_));
            tables.pending.later.remove(&key);
            tables.pending.rows.insert(key, reference);
        } else if !tables.pending.rows.contains_key(&key) {
            tables.pending.later.insert(key, reference);
        }
    }
    tables.pending.generation = generation;
    if kept {
        tables.pending.last_persistent = generation;
    }
    if asked && kept && makes {
        tables.pending.hidden.insert(generation);
    }
    if asked && kept && (makes || !destroys) {
        tables.pending.growing.insert(generation);
    }
    asked && kept
}

/// Adds the rollback of an uncommitted requested change.
pub(super) fn add_uncommitted(tables: &mut Tables, generation: u64, rollback: Rollback) {
    tables.pending.uncommitted.insert(generation, rollback);
}

fn is_volatile(class: &str, at: usize) -> bool {
    let class = xenapi::table::class(class);
    class.and_then(|class| class.fields.get(at)).is_some_and(|field| field.volatile)
}

/// Returns the row of a write's object, if its class is persisted.
fn row(tables: &Tables, done: &Undo) -> Option<(&'static Class, String)> {
    let object = match done {
        Undo::Destroyed(object) => object,
        _ => {
            let (class, reference) = done.object();
            // The object was created and destroyed in one change. Its `Undo::Destroyed` adds the
            // row.
            tables.get(class, reference.as_str())?
        }
    };
    (object.class.record_storage == RecordStorage::State)
        .then(|| (object.class, object.uuid().to_owned()))
}

/// Rows taken for the writer.
#[derive(Debug)]
pub(crate) struct WriteBatch {
    keys: Rows,
    rows: Vec<RowChange>,
    generation: u64,
    grows: bool,
}

impl WriteBatch {
    /// Reads the current values of the rows.
    pub(super) fn with_rows(mut self, tables: &Tables) -> Self {
        self.generation = tables.generation;
        let rows = self.keys.iter().map(|((class, uuid), reference)| {
            let object = tables.get(class, reference.as_str());
            RowChange { class, uuid: uuid.clone(), row: object.map(Row::of) }
        });
        self.rows = rows.collect();
        self
    }

    /// Returns the last generation in the batch.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the rows.
    pub(crate) fn rows(&self) -> &[RowChange] {
        &self.rows
    }

    /// Returns whether the batch contains a requested change that does not free space.
    pub(crate) fn grows(&self) -> bool {
        self.grows
    }

    /// Drops rows from the batch. A dropped row is taken again after its object's next change.
    pub(crate) fn leave_out(&mut self, which: impl Fn(&str, &str) -> bool) {
        self.keys.retain(|(class, uuid), _| !which(class, uuid));
        self.rows.retain(|row| !which(row.class, &row.uuid));
    }
}

/// Change of one row.
#[derive(Debug)]
pub(crate) struct RowChange {
    /// Name of the class.
    pub(crate) class: &'static str,
    /// UUID of the object.
    pub(crate) uuid: String,
    /// New row. `None` deletes the row.
    pub(crate) row: Option<Row>,
}

/// An object as it is stored.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) class: &'static Class,
    pub(crate) reference: Ref,
    pub(crate) age: u64,
    pub(crate) made: u64,
    pub(crate) changed: u64,
    /// Field values, ordered by field number.
    pub(crate) fields: Arc<Vec<Value>>,
    pub(crate) unknown: UnknownFields,
}

impl Row {
    pub(super) fn of(object: &Object) -> Self {
        Self {
            class: object.class,
            reference: object.reference.clone(),
            age: object.age,
            made: object.made,
            changed: object.changed,
            fields: Arc::clone(&object.fields),
            unknown: object.unknown.clone(),
        }
    }
}
