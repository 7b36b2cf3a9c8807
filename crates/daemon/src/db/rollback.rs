//! Rollback of an ended change that cannot be persisted.
//!
//! Other changes may have followed. So the rollback is a change of its own and undoes only values
//! that are still as the change left them. If an object that the change created is in use, the
//! whole change stays, because its users depend on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use xenapi::Value;
use xenapi::table::{Class, Field, FieldIx};

use super::tables::Tables;
use super::write_record::Undo;
use super::{Object, Ref, Tx, View, back_references};

/// Undo information of an ended change.
#[derive(Debug, Default)]
pub(super) struct Rollback {
    created_objects: Vec<CreatedObject>,
    sets: Vec<FieldWrite>,
    destroyed: Vec<Object>,
}

/// A field of an object that the change wrote, with its values before and after the change.
#[derive(Debug)]
struct FieldWrite {
    field: FieldIx,
    object: Ref,
    old: Value,
    new: Value,
}

/// An object that the change created.
#[derive(Debug)]
struct CreatedObject {
    class: &'static Class,
    reference: Ref,
    /// Fields as the change left them.
    final_fields: Arc<Vec<Value>>,
}

impl Rollback {
    /// Builds the rollback of a change that ends now, from its undo list.
    pub(super) fn of(tables: &Tables, undo: Vec<Undo>) -> Self {
        let mut all = Self::default();
        // Newest writes come first. Earlier writes of the same field overwrite the old value.
        for done in undo.into_iter().rev() {
            match done {
                Undo::Made(class, reference) => all.record_creation(tables, class, reference),
                Undo::Set(field, reference, was) => all.set(tables, field, reference, was),
                Undo::Destroyed(object) => all.destroyed.push(object),
                // Derived sets follow from the reference fields.
                Undo::Joined(..) | Undo::Left(..) | Undo::Touched(..) => {}
            }
        }
        all
    }

    /// Records the creation of an object. Other writes to the object need no rollback.
    fn record_creation(&mut self, tables: &Tables, class: &'static Class, reference: Ref) {
        self.sets.retain(|write| write.object != reference);
        let before = self.destroyed.len();
        self.destroyed.retain(|object| object.reference != reference);
        if self.destroyed.len() == before
            && let Some(object) = tables.get(class.name, reference.as_str())
        {
            self.created_objects.push(CreatedObject {
                class,
                final_fields: Arc::clone(&object.fields),
                reference,
            });
        }
    }

    fn set(&mut self, tables: &Tables, field: FieldIx, reference: Ref, was: Value) {
        let gone = self.destroyed.iter_mut().find(|object| object.reference == reference);
        if let Some(object) = gone {
            object.put(field.at(), was);
            return;
        }
        let same = |write: &&mut FieldWrite| write.field == field && write.object == reference;
        if let Some(later) = self.sets.iter_mut().find(same) {
            later.old = was;
            return;
        }
        let object = tables.get(field.class(), reference.as_str());
        if let Some(new) = object.and_then(|object| object.get(field)).cloned() {
            self.sets.push(FieldWrite { field, object: reference, old: was, new });
        }
    }

    /// Rolls back values that are still as the change left them. Returns false, without any effect,
    /// if a created object is in use. Later changes must have been rolled back before.
    pub(super) fn apply(self, tx: &mut Tx<'_>) -> bool {
        if self.created_objects.iter().any(|created_object| created_object.has_changed(&tx.view()))
        {
            return false;
        }
        for object in self.destroyed {
            tx.restore(object);
        }
        for FieldWrite { field, object, old, new } in self.sets {
            if tx.view().get(&object, field) == Ok(&new) {
                // The object exists and its old value fits, so this cannot fail.
                let _ = tx.set(&object, field, old);
            }
        }
        for CreatedObject { class, reference, .. } in self.created_objects {
            // An object that is gone already needs no rollback.
            let _ = tx.destroy(class, &reference);
        }
        true
    }
}

impl CreatedObject {
    /// Returns whether the object exists and has changed since the change.
    fn has_changed(&self, view: &View<'_>) -> bool {
        let Ok(object) = view.object(self.class, &self.reference) else { return false };
        // `allowed_operations` depends on other objects, so its changes do not count as use.
        let fields = self.class.numbers().filter(|(_, field)| field.name != "allowed_operations");
        fields.into_iter().any(|(number, field)| {
            let (is, was) = (object.get(number), self.final_fields.get(number.at()));
            !matches!((is, was), (Some(is), Some(was)) if same(field, is, was))
        })
    }
}

/// Compares values. A derived set counts as equal in any order, because leaving and joining again
/// moves a member.
fn same(field: &Field, is: &Value, was: &Value) -> bool {
    if field.inverse.is_none() {
        return is == was;
    }
    let names = |value| back_references::named(value).collect::<BTreeSet<&str>>();
    names(is) == names(was)
}
