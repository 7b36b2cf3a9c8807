//! What readers see.

use std::collections::HashSet;
use std::sync::Arc;

use xenapi::table::{Class, FieldIx};
use xenapi::{ApiError, Encoded, Value, codes};

use super::changes::{self, Change, ChangesSince};
use super::tables::{Table, Tables};
use super::{Object, Ref};

/// Everything, at one moment.
#[derive(Debug)]
pub struct View<'a> {
    tables: &'a Tables,
}

impl<'a> View<'a> {
    pub(super) fn of(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// The generation of the last change.
    pub fn generation(&self) -> u64 {
        self.tables.generation
    }

    /// The last generation of which [`View::since`] tells.
    pub fn published_generation(&self) -> u64 {
        self.tables.published_generation()
    }

    /// An object.
    ///
    /// # Errors
    /// `HANDLE_INVALID`: there is none of this class with this reference.
    pub fn object(&self, class: &'static Class, reference: &Ref) -> Result<&'a Object, ApiError> {
        find(self.tables, class.name, reference)
    }

    /// A field of an object.
    ///
    /// # Errors
    /// As [`View::object`].
    pub fn get(&self, reference: &Ref, field: impl Into<FieldIx>) -> Result<&'a Value, ApiError> {
        get(self.tables, reference, field.into())
    }

    /// All of a class, the oldest first.
    pub fn all(&self, class: &'static Class) -> impl Iterator<Item = &'a Object> {
        let table = self.tables.table(class.name);
        table.into_iter().flat_map(in_order)
    }

    /// How many there are of a class.
    pub fn count(&self, class: &'static Class) -> usize {
        self.tables.table(class.name).map_or(0, |table| table.by_age.len())
    }

    /// How many of a class there are for who knows what [`View::since`] has told.
    pub fn count_published(&self, class: &'static Class) -> usize {
        changes::count(self.tables, class)
    }

    /// Those that are attached, the oldest first: of a class with `currently_attached`.
    pub fn attached(&self, class: &'static Class) -> impl Iterator<Item = &'a Ref> {
        let table = self.tables.table(class.name);
        table.into_iter().flat_map(|table| table.class_index.attached())
    }

    /// The one with this UUID, which may be written in capitals.
    ///
    /// # Errors
    /// `UUID_INVALID`: there is none.
    pub fn by_uuid(&self, class: &'static Class, uuid: &str) -> Result<&'a Ref, ApiError> {
        let table = self.tables.table(class.name);
        let found = table.and_then(|table| table.class_index.by_uuid(&uuid.to_ascii_lowercase()));
        found.ok_or_else(|| codes::uuid_invalid(class.name, uuid))
    }

    /// Those with this name, the oldest first.
    pub fn by_name(&self, class: &'static Class, name: &str) -> impl Iterator<Item = &'a Ref> {
        let table = self.tables.table(class.name);
        table.into_iter().flat_map(move |table| table.class_index.by_name(name))
    }

    /// All of an object.
    ///
    /// # Errors
    /// As [`View::object`].
    pub fn record(&self, class: &'static Class, reference: &Ref) -> Result<Arc<Encoded>, ApiError> {
        Ok(self.object(class, reference)?.record())
    }

    /// What of a class is different from how it was when `generation` had ended, in any order:
    /// [`Change::when`] says in which it was.
    pub fn since(
        &self,
        generation: u64,
        class: &'static Class,
    ) -> impl Iterator<Item = Change<'a>> + use<'a> {
        ChangesSince { tables: self.tables, class, since: generation }.all()
    }

    /// The same of these objects of the class alone. It costs no more than what has changed of the
    /// class, or these objects if they are fewer, and the ends of the class since.
    pub fn since_among<'b>(
        &self,
        generation: u64,
        class: &'static Class,
        objects: &'b HashSet<Ref>,
    ) -> impl Iterator<Item = Change<'a>> + use<'a, 'b> {
        ChangesSince { tables: self.tables, class, since: generation }.among(objects)
    }
}

/// The objects of a table, the oldest first.
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
