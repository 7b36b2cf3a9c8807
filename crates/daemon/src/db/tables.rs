//! Tables of all objects, with their indexes.

use std::collections::{BTreeMap, HashMap};

use xenapi::Value;
use xenapi::table::FieldIx;

use super::lookup::{ClassIndex, IndexedField};
use super::pending_writes::PendingWrites;
use super::tombstones::{Tombstone, Tombstones};
use super::{Object, Ref};

/// All tables.
#[derive(Debug)]
pub(super) struct Tables {
    tables: HashMap<&'static str, Table>,
    /// Generation of the last change.
    pub(super) generation: u64,
    ages: u64,
    /// Recent deletions.
    pub(super) tombstones: Tombstones,
    /// Changes not persisted yet.
    pub(super) pending: PendingWrites,
}

/// Objects of one class.
#[derive(Debug, Default)]
pub(super) struct Table {
    objects: HashMap<Ref, Object>,
    pub(super) by_age: BTreeMap<u64, Ref>,
    /// Objects by generation of last change, then by age.
    pub(super) changed: BTreeMap<(u64, u64), Ref>,
    pub(super) class_index: ClassIndex,
}

impl Table {
    pub(super) fn get(&self, reference: &str) -> Option<&Object> {
        self.objects.get(reference)
    }
}

impl Tables {
    pub(super) fn new(generation: u64) -> Self {
        let tables = xenapi::table::classes().iter().map(|class| (class.name, Table::default()));
        Self {
            tables: tables.collect(),
            generation,
            ages: 0,
            tombstones: Tombstones::default(),
            pending: PendingWrites::default(),
        }
    }

    pub(super) fn table(&self, class: &str) -> Option<&Table> {
        self.tables.get(class)
    }

    pub(super) fn get(&self, class: &str, reference: &str) -> Option<&Object> {
        self.table(class)?.get(reference)
    }

    fn get_mut(&mut self, class: &str, reference: &str) -> Option<&mut Object> {
        self.tables.get_mut(class)?.objects.get_mut(reference)
    }

    pub(super) fn next_age(&mut self) -> u64 {
        self.ages += 1;
        self.ages
    }

    /// Adds an object to its table and indexes.
    pub(super) fn put(&mut self, object: Object) {
        let Some(table) = self.tables.get_mut(object.class.name) else { return };
        let (age, reference) = (object.age, object.reference.clone());
        for (indexed_field, at) in IndexedField::all(object.class) {
            if let Some(value) = object.fields.get(at) {
                table.class_index.insert(indexed_field, (age, &reference), value);
            }
        }
        table.by_age.insert(age, reference.clone());
        if object.changed > 0 {
            table.changed.insert((object.changed, age), reference.clone());
        }
        self.ages = self.ages.max(age);
        table.objects.insert(reference, object);
    }

    /// Removes an object from its table and indexes.
    pub(super) fn take(&mut self, class: &str, reference: &Ref) -> Option<Object> {
        let table = self.tables.get_mut(class)?;
        let object = table.objects.remove(reference)?;
        for (indexed_field, at) in IndexedField::all(object.class) {
            if let Some(value) = object.fields.get(at) {
                table.class_index.remove(indexed_field, object.age, value);
            }
        }
        table.by_age.remove(&object.age);
        table.changed.remove(&(object.changed, object.age));
        Some(object)
    }

    /// Sets a field and returns its old value.
    pub(super) fn set(&mut self, field: FieldIx, reference: &Ref, value: Value) -> Option<Value> {
        let Table { objects, class_index, .. } = self.tables.get_mut(field.class())?;
        let object = objects.get_mut(reference)?;
        let was = object.put(field.at(), value)?;
        if let Some(indexed_field) =
            object.class.fields.get(field.at()).and_then(|field| IndexedField::of(field.name))
        {
            class_index.remove(indexed_field, object.age, &was);
            if let Some(is) = object.fields.get(field.at()) {
                class_index.insert(indexed_field, (object.age, reference), is);
            }
        }
        Some(was)
    }

    /// Returns mutable members of a derived set. `None` if the object does not exist.
    pub(super) fn members(&mut self, set: FieldIx, holder: &Ref) -> Option<&mut Vec<Value>> {
        self.get_mut(set.class(), holder.as_str())?.members(set.at())
    }

    /// Sets the generation of an object's last change.
    pub(super) fn stamp(&mut self, class: &'static str, reference: &Ref, generation: u64) {
        let Some(Table { objects, changed, .. }) = self.tables.get_mut(class) else { return };
        let Some(object) = objects.get_mut(reference) else { return };
        if object.made == 0 {
            object.made = generation;
        }
        changed.remove(&(object.changed, object.age));
        object.changed = generation;
        changed.insert((generation, object.age), reference.clone());
    }

    /// Records the deletion of an object in this generation.
    pub(super) fn add_tombstone(
        &mut self,
        class: &'static str,
        tombstone: Tombstone,
        generation: u64,
    ) {
        let when = (generation, self.next_age());
        self.tombstones.add(class, when, tombstone);
    }

    /// Returns the last published generation: that of the last change, or the one before the first
    /// change that is not published.
    pub(super) fn published_generation(&self) -> u64 {
        self.pending.hidden().map_or(self.generation, |first| first.saturating_sub(1))
    }
}
