//! What has changed since.

use std::collections::HashSet;

use xenapi::table::Class;

use super::tables::{Table, Tables};
use super::{Object, Ref};

/// A difference between two moments. Several changes of one object are one; what was made and went
/// in between is none.
#[derive(Debug)]
pub enum Change<'a> {
    /// It was not there.
    Made(&'a Object),
    /// It was there, and is another.
    Changed(&'a Object),
    /// It was there.
    Gone {
        /// Its class.
        class: &'static Class,
        /// What it was called.
        reference: &'a Ref,
        /// When it went: a generation, and its place among what went in that one.
        when: (u64, u64),
    },
}

impl Change<'_> {
    /// The class of the object.
    pub fn class(&self) -> &'static Class {
        match self {
            Self::Made(object) | Self::Changed(object) => object.class(),
            Self::Gone { class, .. } => class,
        }
    }

    /// What the object is called, or was.
    pub fn reference(&self) -> &Ref {
        match self {
            Self::Made(object) | Self::Changed(object) => object.reference(),
            Self::Gone { reference, .. } => reference,
        }
    }

    /// By which changes of several classes are put in order: when it was, and its place among what
    /// was changed then.
    pub fn when(&self) -> (u64, u64) {
        match self {
            Self::Made(object) | Self::Changed(object) => (object.changed, object.age),
            Self::Gone { when, .. } => *when,
        }
    }
}

/// A class, and how it was when `since` had ended.
pub(super) struct ChangesSince<'a> {
    pub(super) tables: &'a Tables,
    pub(super) class: &'static Class,
    pub(super) since: u64,
}

impl<'a> ChangesSince<'a> {
    /// Everything of the class that is different, as far as it is told, in any order. It costs what
    /// has changed of this class.
    pub(super) fn all(self) -> impl Iterator<Item = Change<'a>> {
        let there = self.changed().filter_map(self.of());
        there.chain(self.gone())
    }

    /// The same of these objects alone. It costs what has changed of this class or the number of
    /// these objects, whichever is less, and the ends of the class since.
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

    /// What was changed since and is there.
    fn changed(&self) -> impl Iterator<Item = &'a Object> + use<'a> {
        let (table, first) = (self.table(), self.first());
        let changed = table.into_iter().flat_map(move |table| table.changed.range(first..));
        changed.filter_map(move |(_, reference)| table?.get(reference.as_str()))
    }

    /// How an object that is there is told.
    fn of(&self) -> impl Fn(&'a Object) -> Option<Change<'a>> + use<'a> {
        let (since, told) = (self.since, self.tables.published_generation());
        move |object| {
            if object.made > since {
                // Though its last change is told later: who is told of that must know it.
                (object.made <= told).then_some(Change::Made(object))
            } else {
                (object.changed > since && object.changed <= told)
                    .then_some(Change::Changed(object))
            }
        }
    }

    fn gone(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        let (class, since, told) = (self.class, self.since, self.tables.published_generation());
        // Who knows nothing knows of nothing that could go.
        let ends = (since > 0).then(|| self.tables.tombstones.from(class.name, self.first()));
        let gone = ends.into_iter().flatten();
        let gone = gone.filter(move |((generation, _), tombstone)| {
            *generation <= told && tombstone.made <= since
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

/// How many of a class there are, as far as it is told.
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
