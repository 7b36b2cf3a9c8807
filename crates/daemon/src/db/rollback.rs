//! Taking back a change that has ended, because it cannot be stored.
//!
//! Others have changed things since. So this is a change of its own, which takes back what is still
//! as the former one has left it. What was made and is used since stays, with all that was changed
//! together with it: whoever uses it would be left with nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use xenapi::Value;
use xenapi::table::{Class, Field, FieldIx};

use super::tables::Tables;
use super::write_record::Undo;
use super::{Object, Ref, Tx, View, back_references};

/// What a change has done, as far as it can be taken back later.
#[derive(Debug, Default)]
pub(super) struct Rollback {
    created_object: Vec<CreatedObject>,
    /// Field, object, what it held before, what it holds.
    sets: Vec<(FieldIx, Ref, Value, Value)>,
    destroyed: Vec<Object>,
}

/// An object that was made.
#[derive(Debug)]
struct CreatedObject {
    class: &'static Class,
    reference: Ref,
    /// As its change has left it.
    left: Arc<Vec<Value>>,
}

impl Rollback {
    /// Of a change that ends now, from how it would be taken back now.
    pub(super) fn of(tables: &Tables, undo: Vec<Undo>) -> Self {
        let mut all = Self::default();
        // The last write of a field comes first, and each before it says what was there earlier.
        for done in undo.into_iter().rev() {
            match done {
                Undo::Made(class, reference) => all.forget(tables, class, reference),
                Undo::Set(field, reference, was) => all.set(tables, field, reference, was),
                Undo::Destroyed(object) => all.destroyed.push(object),
                // Sets of references follow from what is set.
                Undo::Joined(..) | Undo::Left(..) | Undo::Told(..) => {}
            }
        }
        all
    }

    /// What it has made is destroyed again; what it did with it does not matter.
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

    /// Takes back what is still as it was left; false: something that was made is used since, and
    /// all of it stays. Changes after it have been taken back already.
    pub(super) fn apply(self, tx: &mut Tx<'_>) -> bool {
        if self.created_object.iter().any(|created_object| created_object.is_used(&tx.view())) {
            return false;
        }
        for object in self.destroyed {
            tx.restore(object);
        }
        for (field, reference, was, is) in self.sets {
            if tx.view().get(&reference, field) == Ok(&is) {
                // It is there, and what it held before fits.
                let _ = tx.set(&reference, field, was);
            }
        }
        for CreatedObject { class, reference, .. } in self.created_object {
            // Gone already: that is what is wanted.
            let _ = tx.destroy(class, &reference);
        }
        true
    }
}

impl CreatedObject {
    /// It is there, and not as it was left.
    fn is_used(&self, view: &View<'_>) -> bool {
        let Ok(object) = view.object(self.class, &self.reference) else { return false };
        // What may be done now follows from what others have done elsewhere.
        let fields = self.class.numbers().filter(|(_, field)| field.name != "allowed_operations");
        fields.into_iter().any(|(number, field)| {
            let (is, was) = (object.get(number), self.left.get(number.at()));
            !matches!((is, was), (Some(is), Some(was)) if same(field, is, was))
        })
    }
}

/// Who leaves a set of references that follows and comes back to it has another place.
fn same(field: &Field, is: &Value, was: &Value) -> bool {
    if field.inverse.is_none() {
        return is == was;
    }
    let names = |value| back_references::named(value).collect::<BTreeSet<&str>>();
    names(is) == names(was)
}
