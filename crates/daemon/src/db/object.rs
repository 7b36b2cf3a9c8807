//! One record.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use xenapi::table::{Class, FieldIx};
use xenapi::{Encoded, Value};

use super::{Ref, Row};

/// Fields stored by a later version, by name.
pub(crate) type UnknownFields = Option<Arc<BTreeMap<String, Value>>>;

/// A record with its database metadata.
#[derive(Debug)]
pub struct Object {
    pub(super) class: &'static Class,
    pub(super) reference: Ref,
    /// Creation order among all objects ever created.
    pub(super) age: u64,
    /// Field values, shared with encoded records.
    pub(super) fields: Arc<Vec<Value>>,
    /// Fields that this version does not know, preserved unchanged.
    pub(super) unknown: UnknownFields,
    /// Generation of creation. It is 0 until the creating change ends.
    pub(super) made: u64,
    pub(super) changed: u64,
    record: OnceLock<Arc<Encoded>>,
}

impl Object {
    pub(super) fn new(class: &'static Class, reference: Ref, age: u64, fields: Vec<Value>) -> Self {
        let (fields, unknown, record) = (Arc::new(fields), None, OnceLock::new());
        Self { class, reference, age, fields, unknown, made: 0, changed: 0, record }
    }

    /// Returns the class.
    pub fn class(&self) -> &'static Class {
        self.class
    }

    /// Returns the reference.
    pub fn reference(&self) -> &Ref {
        &self.reference
    }

    /// Returns the generation of creation.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Returns the generation of creation, and the order within that generation.
    pub fn creation(&self) -> (u64, u64) {
        (self.made, self.age)
    }

    /// Returns the size of the fields in memory, in bytes, as the limits of records count it.
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(super::bounds::bytes).sum()
    }

    /// Returns the generation of the last change.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// Returns a field. `None` if the field belongs to another class.
    pub fn get(&self, field: FieldIx) -> Option<&Value> {
        self.fields.get(field.at()).filter(|_| field.class() == self.class.name)
    }

    /// Returns the UUID. It is empty if the class has none.
    pub fn uuid(&self) -> &str {
        match self.class.field("uuid").and_then(|(field, _)| self.get(field)) {
            Some(Value::Str(uuid)) => uuid,
            _ => "",
        }
    }

    /// Returns the whole record as clients receive it. It is encoded once for each change and
    /// shared.
    pub fn record(&self) -> Arc<Encoded> {
        let make = || Encoded::record(self.class, Arc::clone(&self.fields));
        self.record.get_or_init(make).clone()
    }

    /// Returns the object as it is stored, with its UUID.
    pub(crate) fn row(&self) -> (String, Row) {
        (self.uuid().to_owned(), Row::of(self))
    }

    /// Replaces a field and returns its old value.
    pub(super) fn put(&mut self, at: usize, value: Value) -> Option<Value> {
        let place = self.changed_fields().get_mut(at)?;
        Some(std::mem::replace(place, value))
    }

    /// Returns mutable members of a set field.
    pub(super) fn members(&mut self, at: usize) -> Option<&mut Vec<Value>> {
        match self.changed_fields().get_mut(at)? {
            Value::Set(members) => Some(members),
            _ => None,
        }
    }

    /// Returns mutable fields. They are copied first if an encoded record shares them.
    fn changed_fields(&mut self) -> &mut Vec<Value> {
        self.record.take();
        Arc::make_mut(&mut self.fields)
    }
}
