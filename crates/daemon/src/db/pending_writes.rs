//! What is to be stored, and what was not stored yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xenapi::Value;
use xenapi::table::{Class, RecordStorage};

use super::object::UnknownFields;
use super::rollback::Rollback;
use super::tables::Tables;
use super::write_record::Undo;
use super::{Object, Ref};

/// Rows by class and UUID, with the object that had it last.
type Rows = BTreeMap<(&'static str, String), Ref>;

/// What is to be stored.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    /// Somebody stores.
    pub(super) storing: bool,
    rows: Rows,
    /// Objects of which nothing but what is true of this moment has changed: it is enough that a
    /// clean end stores when they were changed.
    later: Rows,
    unsettled: BTreeMap<u64, Rollback>,
    /// Changes that made an object and are not stored.
    hidden: BTreeSet<u64>,
    /// Changes that were asked for, are not stored and do not make room.
    growing: BTreeSet<u64>,
    /// More generations are to be reserved before they reach this one.
    pub(super) reserve_at: Option<u64>,
    generation: u64,
    /// The last change of which something is to be stored.
    pub(super) kept: u64,
}

impl PendingWrites {
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    pub(super) fn is_unsettled(&self, generation: u64) -> bool {
        self.unsettled.contains_key(&generation)
    }

    /// The first change that is not told.
    pub(super) fn hidden(&self) -> Option<u64> {
        self.hidden.first().copied()
    }

    /// There is something to do for who stores.
    pub(super) fn is_wanted(&self) -> bool {
        !self.rows.is_empty() || self.reserve_at.is_some_and(|at| self.generation >= at)
    }

    /// What is to be stored now; `all`: of what is true of this moment too.
    pub(super) fn take(&mut self, all: bool) -> WriteBatch {
        let mut keys = std::mem::take(&mut self.rows);
        if all {
            keys.append(&mut self.later);
        }
        WriteBatch { keys, rows: Vec::new(), generation: 0, grows: !self.growing.is_empty() }
    }

    /// What was taken could not be stored. How all changes are taken back that were asked for, the
    /// first one first.
    pub(super) fn give_back(&mut self, write_batch: WriteBatch) -> Vec<(u64, Rollback)> {
        for (key, reference) in write_batch.keys {
            self.rows.entry(key).or_insert(reference);
        }
        self.hidden.clear();
        self.growing.clear();
        std::mem::take(&mut self.unsettled).into_iter().collect()
    }

    /// Everything until this generation is stored; whether more is told now.
    pub(super) fn mark_committed(&mut self, generation: u64) -> bool {
        let later = generation.saturating_add(1);
        self.unsettled = self.unsettled.split_off(&later);
        let hidden = self.hidden.split_off(&later);
        let told = hidden.len() < self.hidden.len();
        self.hidden = hidden;
        self.growing = self.growing.split_off(&later);
        told
    }
}

/// Notes what a change is going to need that ends with this generation.
pub(super) fn add(tables: &mut Tables, asked: bool, generation: u64, undo: &[Undo]) -> bool {
    let (mut kept, mut makes, mut destroys) = (false, false, false);
    for done in undo {
        let stays = match done {
            Undo::Set(field, ..) => !is_volatile(field.class(), field.at()),
            Undo::Told(..) => false,
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
        tables.pending.kept = generation;
    }
    if asked && kept && makes {
        tables.pending.hidden.insert(generation);
    }
    if asked && kept && (makes || !destroys) {
        tables.pending.growing.insert(generation);
    }
    asked && kept
}

/// A change that was asked for is not stored yet, and this is how it is taken back.
pub(super) fn add_uncommitted(tables: &mut Tables, generation: u64, rollback: Rollback) {
    tables.pending.unsettled.insert(generation, rollback);
}

fn is_volatile(class: &str, at: usize) -> bool {
    let class = xenapi::table::class(class);
    class.and_then(|class| class.fields.get(at)).is_some_and(|field| field.volatile)
}

/// The row of the object of a write, if its class is stored.
fn row(tables: &Tables, done: &Undo) -> Option<(&'static Class, String)> {
    let object = match done {
        Undo::Destroyed(object) => object,
        _ => {
            let (class, reference) = done.object();
            // Made and destroyed in one change: the latter says so.
            tables.get(class, reference.as_str())?
        }
    };
    (object.class.record_storage == RecordStorage::State)
        .then(|| (object.class, object.uuid().to_owned()))
}

/// What was taken to be stored.
#[derive(Debug)]
pub(crate) struct WriteBatch {
    keys: Rows,
    rows: Vec<RowChange>,
    generation: u64,
    grows: bool,
}

impl WriteBatch {
    /// With everything as it is now.
    pub(super) fn looked_up(mut self, tables: &Tables) -> Self {
        self.generation = tables.generation;
        let rows = self.keys.iter().map(|((class, uuid), reference)| {
            let object = tables.get(class, reference.as_str());
            RowChange { class, uuid: uuid.clone(), row: object.map(Row::of) }
        });
        self.rows = rows.collect();
        self
    }

    /// The last change that is in it.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The rows.
    pub(crate) fn rows(&self) -> &[RowChange] {
        &self.rows
    }

    /// Somebody asked for something in it that makes no room.
    pub(crate) fn grows(&self) -> bool {
        self.grows
    }

    /// Leaves rows out. One is taken again when its object has changed again.
    pub(crate) fn leave_out(&mut self, which: impl Fn(&str, &str) -> bool) {
        self.keys.retain(|(class, uuid), _| !which(class, uuid));
        self.rows.retain(|row| !which(row.class, &row.uuid));
    }
}

/// A row.
#[derive(Debug)]
pub(crate) struct RowChange {
    /// Name of its class.
    pub(crate) class: &'static str,
    /// UUID of its object.
    pub(crate) uuid: String,
    /// What it shall be; none: it goes.
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
    /// In the order of their numbers.
    pub(crate) fields: Arc<Vec<Value>>,
    pub(crate) unknown: UnknownFields,
}

impl Row {
    fn of(object: &Object) -> Self {
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
