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
    created_object: Vec<CreatedObject>,
    /// Field, object, old value, new value.
    sets: Vec<(FieldIx, Ref, Value, Value)>,
    destroyed: Vec<Object>,
}

/// An object that the change created.
#[derive(Debug)]
struct CreatedObject {
    class: &'static Class,
    reference: Ref,
    /// Fields as the change left them.
    left: Arc<Vec<Value>>,
}

impl Rollback {
    /// Builds the rollback of a change that ends now, from its undo list.
    pub(super) fn of(tables: &Tables, undo: Vec<Undo>) -> Self {
        let mut all = Self::default();
        // Newest writes come first. Earlier writes of the same field overwrite the old value.
        for done in undo.into_iter().rev() {
            match done {
                Undo::Made(class, reference) => all.forget(tables, class, reference),
                Undo::Set(field, reference, was) => all.set(tables, field, reference, was),
                Undo::Destroyed(object) => all.destroyed.push(object),
                // Derived sets follow from the reference fields.
                Undo::Joined(..) | Undo::Left(..) | Undo::Touched(..) => {}
            }
        }
        all
    }

    /// Records the creation of an object. Other writes to the object need no rollback.
    fn forget(&mut self, tables: &Tables, class: &'static Class, reference: Ref) {
        self.sets.retain(|(_, of, ..)| *of != reference);
        let before = self.destroyed.len();
        self.destroyed.retain(|object| object.reference != reference);
        if self.destroyed.len() == before
            && let Some(object) = tables.get(class.name, reference.as_str())
        {
            self.created_object.push(CreatedObject {
                class,
                left: Arc::clone(&object.fields),
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
        let same = |of: &&mut (FieldIx, Ref, Value, Value)| of.0 == field && of.1 == reference;
        if let Some(later) = self.sets.iter_mut().find(same) {
            later.2 = was;
            return;
        }
        let object = tables.get(field.class(), reference.as_str());
        if let Some(is) = object.and_then(|object| object.get(field)).cloned() {
            self.sets.push((field, reference, was, is));
        }
    }

    /// Rolls back values that are still as the change left them. Returns false, without any effect,
    /// if a created object is in use. Later changes must have been rolled back before.
    pub(super) fn apply(self, tx: &mut Tx<'_>) -> bool {
        if self.created_object.iter().any(|created_object| created_object.is_used(&tx.view())) {
            return false;
        }
        for object in self.destroyed {
            tx.restore(object);
        }
        for (field, reference, was, is) in self.sets {
            if tx.view().get(&reference, field) == Ok(&is) {
                // The object exists and its old value fits, so this cannot fail.
                let _ = tx.set(&reference, field, was);
            }
        }
        for CreatedObject { class, reference, .. } in self.created_object {
            // An object that is gone already needs no rollback.
            let _ = tx.destroy(class, &reference);
        }
        true
    }
}

impl CreatedObject {
    /// Returns whether the object exists and has changed since the change.
    fn is_used(&self, view: &View<'_>) -> bool {
        let Ok(object) = view.object(self.class, &self.reference) else { return false };
        // `allowed_operations` depends on other objects, so its changes do not count as use.
        let fields = self.class.numbers().filter(|(_, field)| field.name != "allowed_operations");
        fields.into_iter().any(|(number, field)| {
            let (is, was) = (object.get(number), self.left.get(number.at()));
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
