//! One record.

use std::sync::{Arc, OnceLock};

use xenapi::table::{Class, FieldIx};
use xenapi::{Encoded, Value};

use super::Ref;

/// A record with what the database knows of it.
#[derive(Debug)]
pub struct Object {
    pub(super) class: &'static Class,
    pub(super) reference: Ref,
    /// Its place among all that were ever made.
    pub(super) age: u64,
    pub(super) fields: Vec<Value>,
    /// Generations; 0 before its change has ended.
    pub(super) made: u64,
    pub(super) changed: u64,
    record: OnceLock<Arc<Encoded>>,
}

impl Object {
    pub(super) fn new(class: &'static Class, reference: Ref, age: u64, fields: Vec<Value>) -> Self {
        Self { class, reference, age, fields, made: 0, changed: 0, record: OnceLock::new() }
    }

    /// Its class.
    pub fn class(&self) -> &'static Class {
        self.class
    }

    /// What it is called.
    pub fn reference(&self) -> &Ref {
        &self.reference
    }

    /// The generation in which it was changed last.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// A field of it; nothing if that is one of another class.
    pub fn get(&self, field: FieldIx) -> Option<&Value> {
        self.fields.get(field.at()).filter(|_| field.class() == self.class.name)
    }

    /// All of it, as clients get it. It is made once for each change and shared by all who ask.
    pub fn record(&self) -> Arc<Encoded> {
        let make = || {
            let names = self.class.fields.iter().map(|field| field.name.to_owned());
            Encoded::new(Value::Map(names.zip(self.fields.iter().cloned()).collect()))
        };
        self.record.get_or_init(make).clone()
    }

    /// Puts a value into a field; what was there.
    pub(super) fn put(&mut self, at: usize, value: Value) -> Option<Value> {
        let place = self.fields.get_mut(at)?;
        self.record.take();
        Some(std::mem::replace(place, value))
    }
}
