//! One record.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use xenapi::table::{Class, FieldIx};
use xenapi::{Encoded, Value};

use super::Ref;

/// Fields that a later version has stored, by name.
pub(crate) type UnknownFields = Option<Arc<BTreeMap<String, Value>>>;

/// A record with what the database knows of it.
#[derive(Debug)]
pub struct Object {
    pub(super) class: &'static Class,
    pub(super) reference: Ref,
    /// Its place among all that were ever made.
    pub(super) age: u64,
    /// Shared with the records that were made of them.
    pub(super) fields: Arc<Vec<Value>>,
    /// Kept as they are, since this version has no use for them.
    pub(super) unknown: UnknownFields,
    /// Generations; 0 before its change has ended.
    pub(super) made: u64,
    pub(super) changed: u64,
    record: OnceLock<Arc<Encoded>>,
}

impl Object {
    pub(super) fn new(class: &'static Class, reference: Ref, age: u64, fields: Vec<Value>) -> Self {
        let (fields, unknown, record) = (Arc::new(fields), None, OnceLock::new());
        Self { class, reference, age, fields, unknown, made: 0, changed: 0, record }
    }

    /// Its class.
    pub fn class(&self) -> &'static Class {
        self.class
    }

    /// What it is called.
    pub fn reference(&self) -> &Ref {
        &self.reference
    }

    /// The generation in which it was made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// The generation in which it was changed last.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// A field of it; nothing if that is one of another class.
    pub fn get(&self, field: FieldIx) -> Option<&Value> {
        self.fields.get(field.at()).filter(|_| field.class() == self.class.name)
    }

    /// Its UUID; empty if its class has none.
    pub fn uuid(&self) -> &str {
        match self.class.field("uuid").and_then(|(field, _)| self.get(field)) {
            Some(Value::Str(uuid)) => uuid,
            _ => "",
        }
    }

    /// All of it, as clients get it. It is made once for each change and shared by all who ask.
    pub fn record(&self) -> Arc<Encoded> {
        let make = || Encoded::record(self.class, Arc::clone(&self.fields));
        self.record.get_or_init(make).clone()
    }

    /// Puts a value into a field; what was there.
    pub(super) fn put(&mut self, at: usize, value: Value) -> Option<Value> {
        let place = self.changed_fields().get_mut(at)?;
        Some(std::mem::replace(place, value))
    }

    /// The members of a field that is a set, to be changed.
    pub(super) fn members(&mut self, at: usize) -> Option<&mut Vec<Value>> {
        match self.changed_fields().get_mut(at)? {
            Value::Set(members) => Some(members),
            _ => None,
        }
    }

    /// The fields, to be changed: of its own, if who holds its record has them too.
    fn changed_fields(&mut self) -> &mut Vec<Value> {
        self.record.take();
        Arc::make_mut(&mut self.fields)
    }
}
