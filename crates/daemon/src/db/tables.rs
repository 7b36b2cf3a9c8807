//! Everything that is there, and how it is found.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use xenapi::Value;
use xenapi::table::Class;

use super::{Object, Ref};

/// Ends of objects that are remembered; a client that comes later than so many is not told of those
/// before.
const GONE_MAX: usize = 65_536;

/// An object that is there no more.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) class: &'static Class,
    pub(super) reference: Ref,
    pub(super) made: u64,
}

/// All tables.
#[derive(Debug)]
pub(super) struct Tables {
    tables: HashMap<&'static str, Table>,
    /// Of the last change.
    pub(super) generation: u64,
    ages: u64,
    /// What there is, by the generation in which it was changed last.
    pub(super) changed: BTreeSet<(u64, &'static str, Ref)>,
    pub(super) gone: BTreeMap<(u64, u64), Gone>,
}

/// The objects of a class.
#[derive(Debug, Default)]
pub(super) struct Table {
    objects: HashMap<Ref, Object>,
    pub(super) by_age: BTreeMap<u64, Ref>,
    by_uuid: HashMap<String, Ref>,
    by_name: HashMap<String, BTreeMap<u64, Ref>>,
}

impl Table {
    pub(super) fn get(&self, reference: &str) -> Option<&Object> {
        self.objects.get(reference)
    }

    pub(super) fn by_uuid(&self, uuid: &str) -> Option<&Ref> {
        self.by_uuid.get(uuid)
    }

    pub(super) fn by_name(&self, name: &str) -> impl Iterator<Item = &Ref> {
        self.by_name.get(name).into_iter().flat_map(BTreeMap::values)
    }

    /// An object is found by its fields, or no more.
    fn index(&mut self, (age, reference): (u64, &Ref), field: &str, value: &Value, found: bool) {
        let Value::Str(text) = value else { return };
        match field {
            "uuid" if found => drop(self.by_uuid.insert(text.clone(), reference.clone())),
            "uuid" => {
                self.by_uuid.remove(text);
            }
            "name_label" => {
                let named = self.by_name.entry(text.clone()).or_default();
                if found {
                    named.insert(age, reference.clone());
                } else {
                    named.remove(&age);
                }
                if named.is_empty() {
                    self.by_name.remove(text);
                }
            }
            _ => {}
        }
    }
}

impl Tables {
    pub(super) fn new(generation: u64) -> Self {
        let tables = xenapi::table::classes().iter().map(|class| (class.name, Table::default()));
        Self {
            tables: tables.collect(),
            generation,
            ages: 0,
            changed: BTreeSet::new(),
            gone: BTreeMap::new(),
        }
    }

    pub(super) fn table(&self, class: &str) -> Option<&Table> {
        self.tables.get(class)
    }

    pub(super) fn get(&self, class: &str, reference: &str) -> Option<&Object> {
        self.table(class)?.get(reference)
    }

    pub(super) fn next_age(&mut self) -> u64 {
        self.ages += 1;
        self.ages
    }

    /// Puts an object into its table.
    pub(super) fn put(&mut self, object: Object) {
        let Some(table) = self.tables.get_mut(object.class.name) else { return };
        let (age, reference) = (object.age, object.reference.clone());
        for (field, value) in object.class.fields.iter().zip(&object.fields) {
            table.index((age, &reference), field.name, value, true);
        }
        table.by_age.insert(age, reference.clone());
        if object.changed > 0 {
            self.changed.insert((object.changed, object.class.name, reference.clone()));
        }
        table.objects.insert(reference, object);
    }

    /// Takes an object out of its table.
    pub(super) fn take(&mut self, class: &str, reference: &Ref) -> Option<Object> {
        let table = self.tables.get_mut(class)?;
        let object = table.objects.remove(reference)?;
        for (field, value) in object.class.fields.iter().zip(&object.fields) {
            table.index((object.age, reference), field.name, value, false);
        }
        table.by_age.remove(&object.age);
        self.changed.remove(&(object.changed, object.class.name, reference.clone()));
        Some(object)
    }

    /// Puts a value into a field; what was there.
    pub(super) fn set(
        &mut self,
        class: &str,
        reference: &Ref,
        at: usize,
        value: Value,
    ) -> Option<Value> {
        let table = self.tables.get_mut(class)?;
        let object = table.objects.get_mut(reference)?;
        let (age, name) = (object.age, object.class.fields.get(at)?.name);
        let was = object.put(at, value.clone())?;
        table.index((age, reference), name, &was, false);
        table.index((age, reference), name, &value, true);
        Some(was)
    }

    /// An object was changed in this generation.
    pub(super) fn stamp(&mut self, class: &'static str, reference: &Ref, generation: u64) {
        let table = self.tables.get_mut(class);
        let Some(object) = table.and_then(|table| table.objects.get_mut(reference)) else { return };
        self.changed.remove(&(object.changed, class, reference.clone()));
        if object.made == 0 {
            object.made = generation;
        }
        object.changed = generation;
        self.changed.insert((generation, class, reference.clone()));
    }

    /// An object went in this generation.
    pub(super) fn bury(&mut self, gone: Gone, generation: u64) {
        let number = self.next_age();
        self.gone.insert((generation, number), gone);
        if self.gone.len() > GONE_MAX {
            self.gone.pop_first();
        }
    }
}
