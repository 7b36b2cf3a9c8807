//! Changes since a generation.

use std::collections::HashSet;

use xenapi::table::Class;

use super::tables::{Table, Tables};
use super::{Object, Ref};

/// Difference of an object between two generations. Several changes of one object become one.
/// Objects created and destroyed in between do not appear.
#[derive(Debug)]
pub enum Change<'a> {
    /// Object was created.
    Made(&'a Object),
    /// Object was changed.
    Changed(&'a Object),
    /// Object was destroyed.
    Gone {
        /// Class of the object.
        class: &'static Class,
        /// Reference of the object.
        reference: &'a Ref,
        /// Generation of the deletion, and its order within that generation.
        when: (u64, u64),
    },
}

impl Change<'_> {
    /// Returns the class of the object.
    pub fn class(&self) -> &'static Class {
        match self {
            Self::Made(object) | Self::Changed(object) => object.class(),
            Self::Gone { class, .. } => class,
        }
    }

    /// Returns the reference of the object.
    pub fn reference(&self) -> &Ref {
        match self {
            Self::Made(object) | Self::Changed(object) => object.reference(),
            Self::Gone { reference, .. } => reference,
        }
    }

    /// Returns the object, unless it is gone.
    pub fn object(&self) -> Option<&Object> {
        match self {
            Self::Made(object) | Self::Changed(object) => Some(object),
            Self::Gone { .. } => None,
        }
    }

    /// Returns the key that orders changes of several classes: the generation and the order within
    /// it.
    pub fn when(&self) -> (u64, u64) {
        match self {
            Self::Made(object) | Self::Changed(object) => (object.changed, object.age),
            Self::Gone { when, .. } => *when,
        }
    }
}

/// Query for the changes of a class since generation `since`.
pub(super) struct ChangesSince<'a> {
    pub(super) tables: &'a Tables,
    pub(super) class: &'static Class,
    pub(super) since: u64,
}

impl<'a> ChangesSince<'a> {
    /// Returns all published changes of the class, unordered. The cost depends on the number of
    /// changes, not on the number of objects.
    pub(super) fn all(self) -> impl Iterator<Item = Change<'a>> {
        let there = self.changed().filter_map(self.of());
        there.chain(self.gone())
    }

    /// Returns the published changes of these objects. The cost is the smaller of the numbers of
    /// changes and of objects, plus the deletions of the class since then.
    pub(super) fn among(self, objects: &HashSet<Ref>) -> impl Iterator<Item = Change<'a>> {
        let mut there: Vec<_> = self.changed().take(objects.len().saturating_add(1)).collect();
        if there.len() > objects.len() {
            let table = self.table();
            there = objects.iter().filter_map(|one| table?.get(one.as_str())).collect();
        } else {
            there.retain(|object| objects.contains(object.reference()));
        }
        let gone = self.gone().filter(|gone| objects.contains(gone.reference()));
        there.into_iter().filter_map(self.of()).chain(gone)
    }

    fn table(&self) -> Option<&'a Table> {
        self.tables.table(self.class.name)
    }

    /// Returns existing objects that changed since the generation.
    fn changed(&self) -> impl Iterator<Item = &'a Object> + use<'a> {
        let (table, first) = (self.table(), self.first());
        let changed = table.into_iter().flat_map(move |table| table.changed.range(first..));
        changed.filter_map(move |(_, reference)| table?.get(reference.as_str()))
    }

    /// Returns a function that converts an existing object to its change, if one is published.
    fn of(&self) -> impl Fn(&'a Object) -> Option<Change<'a>> + use<'a> {
        let (since, published) = (self.since, self.tables.published_generation());
        move |object| {
            if object.made > since {
                // A client that receives a later change must know the object, so `Made` is reported
                // even if the last change is not published yet.
                (object.made <= published).then_some(Change::Made(object))
            } else {
                (object.changed > since && object.changed <= published)
                    .then_some(Change::Changed(object))
            }
        }
    }

    fn gone(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        let (class, since, published) =
            (self.class, self.since, self.tables.published_generation());
        // A client that knows nothing needs no deletions.
        let ends = (since > 0).then(|| self.tables.tombstones.from(class.name, self.first()));
        let gone = ends.into_iter().flatten();
        let gone = gone.filter(move |((generation, _), tombstone)| {
            *generation <= published && tombstone.made <= since
        });
        gone.map(move |(when, tombstone)| Change::Gone {
            class,
            reference: &tombstone.reference,
            when: *when,
        })
    }

    fn first(&self) -> (u64, u64) {
        (self.since.saturating_add(1), 0)
    }
}

/// Returns the published number of objects of a class.
pub(super) fn count(tables: &Tables, class: &'static Class) -> usize {
    let Some(table) = tables.table(class.name) else { return 0 };
    let after = (tables.published_generation().saturating_add(1), 0);
    let later = table.changed.range(after..);
    let made = |reference: &Ref| table.get(reference.as_str()).map(Object::made);
    let hidden = later.filter(|(_, reference)| made(reference) >= Some(after.0)).count();
    let gone = tables.tombstones.from(class.name, after);
    let still = gone.filter(|(_, tombstone)| tombstone.made < after.0).count();
    table.by_age.len().saturating_sub(hidden).saturating_add(still)
}
