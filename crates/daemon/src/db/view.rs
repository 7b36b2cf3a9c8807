//! Read access to the records.

use std::collections::HashSet;
use std::sync::Arc;

use xenapi::table::{Class, FieldIx};
use xenapi::{ApiError, Encoded, Value, codes};

use super::changes::{self, Change, ChangesSince};
use super::tables::{Table, Tables};
use super::{Object, Ref};

/// A consistent snapshot of all records.
#[derive(Debug)]
pub struct View<'a> {
    tables: &'a Tables,
}

impl<'a> View<'a> {
    pub(super) fn of(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// Returns the generation of the last change.
    pub fn generation(&self) -> u64 {
        self.tables.generation
    }

    /// Returns the last generation that [`View::since`] reports.
    pub fn published_generation(&self) -> u64 {
        self.tables.published_generation()
    }

    /// Returns an object.
    ///
    /// # Errors
    /// `HANDLE_INVALID` if the class has no object with this reference.
    pub fn object(&self, class: &'static Class, reference: &Ref) -> Result<&'a Object, ApiError> {
        find(self.tables, class.name, reference)
    }

    /// Returns a field of an object.
    ///
    /// # Errors
    /// Same as [`View::object`].
    pub fn get(&self, reference: &Ref, field: impl Into<FieldIx>) -> Result<&'a Value, ApiError> {
        get(self.tables, reference, field.into())
    }

    /// Returns all objects of a class, oldest first.
    pub fn all(&self, class: &'static Class) -> impl Iterator<Item = &'a Object> {
        let table = self.tables.table(class.name);
        table.into_iter().flat_map(in_order)
    }

    /// Returns the number of objects of a class.
    pub fn count(&self, class: &'static Class) -> usize {
        self.tables.table(class.name).map_or(0, |table| table.by_age.len())
    }

    /// Returns the number of objects of a class that clients know from [`View::since`].
    pub fn count_published(&self, class: &'static Class) -> usize {
        changes::count(self.tables, class)
    }

    /// Returns the attached objects of a class that has `currently_attached`, oldest first.
    pub fn attached(&self, class: &'static Class) -> impl Iterator<Item = &'a Ref> {
        let table = self.tables.table(class.name);
        table.into_iter().flat_map(|table| table.class_index.attached())
    }

    /// Returns the object with this UUID. Case does not matter.
    ///
    /// # Errors
    /// `UUID_INVALID` if there is none.
    pub fn by_uuid(&self, class: &'static Class, uuid: &str) -> Result<&'a Ref, ApiError> {
        let table = self.tables.table(class.name);
        let found = table.and_then(|table| table.class_index.by_uuid(&uuid.to_ascii_lowercase()));
        found.ok_or_else(|| codes::uuid_invalid(class.name, uuid))
    }

    /// Returns the objects with this name, oldest first.
    pub fn by_name(&self, class: &'static Class, name: &str) -> impl Iterator<Item = &'a Ref> {
        let table = self.tables.table(class.name);
        table.into_iter().flat_map(move |table| table.class_index.by_name(name))
    }

    /// Returns the whole record of an object.
    ///
    /// # Errors
    /// Same as [`View::object`].
    pub fn record(&self, class: &'static Class, reference: &Ref) -> Result<Arc<Encoded>, ApiError> {
        Ok(self.object(class, reference)?.record())
    }

    /// Returns the published changes of a class since `generation`, unordered. [`Change::when`]
    /// orders them.
    pub fn since(
        &self,
        generation: u64,
        class: &'static Class,
    ) -> impl Iterator<Item = Change<'a>> + use<'a> {
        ChangesSince { tables: self.tables, class, since: generation }.all()
    }

    /// Returns the published changes of these objects of a class. The cost is the smaller of the
    /// numbers of changes and of objects, plus the deletions of the class since then.
    pub fn since_among<'b>(
        &self,
        generation: u64,
        class: &'static Class,
        objects: &'b HashSet<Ref>,
    ) -> impl Iterator<Item = Change<'a>> + use<'a, 'b> {
        ChangesSince { tables: self.tables, class, since: generation }.among(objects)
    }
}

/// Returns the objects of a table, oldest first.
fn in_order(table: &Table) -> impl Iterator<Item = &Object> {
    table.by_age.values().filter_map(|reference| table.get(reference.as_str()))
}

pub(super) fn find<'a>(
    tables: &'a Tables,
    class: &str,
    reference: &Ref,
) -> Result<&'a Object, ApiError> {
    let found = tables.get(class, reference.as_str());
    found.ok_or_else(|| codes::handle_invalid(class, reference.as_str()))
}

pub(super) fn get<'a>(
    tables: &'a Tables,
    reference: &Ref,
    field: FieldIx,
) -> Result<&'a Value, ApiError> {
    let value = find(tables, field.class(), reference)?.get(field);
    value.ok_or_else(|| codes::internal("a class without its field"))
}
