//! Indexes of a class.

use std::collections::{BTreeMap, HashMap};

use xenapi::Value;
use xenapi::table::Class;

use super::Ref;

/// An indexed field.
#[derive(Clone, Copy, Debug)]
pub(super) enum IndexedField {
    Uuid,
    Name,
    Attached,
}

impl IndexedField {
    /// Returns the index kind of a field name, if the field is indexed.
    pub(super) fn of(field: &str) -> Option<Self> {
        match field {
            "uuid" => Some(Self::Uuid),
            "name_label" => Some(Self::Name),
            "currently_attached" => Some(Self::Attached),
            _ => None,
        }
    }

    /// Returns the indexed fields of a class with their numbers.
    pub(super) fn all(class: &'static Class) -> impl Iterator<Item = (Self, usize)> {
        let fields = class.fields.iter().enumerate();
        fields.filter_map(|(at, field)| Some((Self::of(field.name)?, at)))
    }
}

/// Indexes of one class: values of indexed fields to references.
#[derive(Debug, Default)]
pub(super) struct ClassIndex {
    by_uuid: HashMap<String, Ref>,
    by_name: HashMap<String, BTreeMap<u64, Ref>>,
    attached: BTreeMap<u64, Ref>,
}

impl ClassIndex {
    pub(super) fn by_uuid(&self, uuid: &str) -> Option<&Ref> {
        self.by_uuid.get(uuid)
    }

    pub(super) fn by_name(&self, name: &str) -> impl Iterator<Item = &Ref> {
        self.by_name.get(name).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = &Ref> {
        self.attached.values()
    }

    /// Adds an object with this value.
    pub(super) fn insert(
        &mut self,
        indexed_field: IndexedField,
        (age, reference): (u64, &Ref),
        value: &Value,
    ) {
        match (indexed_field, value) {
            (IndexedField::Uuid, Value::Str(text)) => {
                self.by_uuid.insert(text.to_ascii_lowercase(), reference.clone());
            }
            (IndexedField::Name, Value::Str(text)) => {
                let named = self.by_name.entry(text.clone()).or_default();
                named.insert(age, reference.clone());
            }
            (IndexedField::Attached, Value::Bool(true)) => {
                self.attached.insert(age, reference.clone());
            }
            _ => {}
        }
    }

    /// Removes an object with this value.
    pub(super) fn remove(&mut self, indexed_field: IndexedField, age: u64, value: &Value) {
        match (indexed_field, value) {
            (IndexedField::Uuid, Value::Str(text)) => {
                self.by_uuid.remove(&text.to_ascii_lowercase());
            }
            (IndexedField::Name, Value::Str(text)) => {
                if let Some(named) = self.by_name.get_mut(text) {
                    named.remove(&age);
                    if named.is_empty() {
                        self.by_name.remove(text);
                    }
                }
            }
            (IndexedField::Attached, Value::Bool(true)) => {
                self.attached.remove(&age);
            }
            _ => {}
        }
    }
}
