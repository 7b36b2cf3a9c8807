//! What has changed since.

use xenapi::table::Class;

use super::tables::Tables;
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
        /// When it went.
        generation: u64,
    },
}

/// Everything that is different from how it was when `since` had ended, as far as it is told; what
/// is there in the order of its last changes, then what is gone.
pub(super) fn since(tables: &Tables, since: u64) -> impl Iterator<Item = Change<'_>> {
    let (first, told) = ((since.saturating_add(1), 0), tables.told());
    let there = tables.changed.range(first..);
    let there = there.filter_map(move |((generation, _), (class, reference))| {
        let object = tables.get(class, reference.as_str())?;
        if object.made > since {
            // Though its last change is told later: who is told of that must know it.
            (object.made <= told).then_some(Change::Made(object))
        } else {
            (*generation <= told).then_some(Change::Changed(object))
        }
    });
    let gone = tables.gone.range(first..);
    let gone =
        gone.filter(move |((generation, _), gone)| *generation <= told && gone.made <= since);
    let gone = gone.map(|((generation, _), gone)| Change::Gone {
        class: gone.class,
        reference: &gone.reference,
        generation: *generation,
    });
    there.chain(gone)
}

/// How many of a class there are, as far as it is told.
pub(super) fn count(tables: &Tables, class: &'static Class) -> usize {
    let all = tables.table(class.name).map_or(0, |table| table.by_age.len());
    let (after, name) = ((tables.told().saturating_add(1), 0), class.name);
    let later = tables.changed.range(after..).filter(|(_, (class, _))| *class == name);
    let made = |reference: &Ref| tables.get(name, reference.as_str()).map(Object::made);
    let hidden = later.filter(|(_, (_, reference))| made(reference) >= Some(after.0)).count();
    let gone = tables.gone.range(after..).map(|(_, gone)| gone);
    let still = gone.filter(|gone| gone.class.name == name && gone.made < after.0).count();
    all.saturating_sub(hidden).saturating_add(still)
}
