//! What has changed since.

use std::ops::Bound;

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

/// Everything that is different from how it was when `since` had ended; what is there in the order
/// of its last changes, then what is gone.
pub(super) fn since(tables: &Tables, since: u64) -> impl Iterator<Item = Change<'_>> {
    let after = (since.saturating_add(1), "", Ref::from(""));
    let there = tables.changed.range((Bound::Included(after), Bound::Unbounded));
    let there = there.filter_map(move |(_, class, reference)| {
        let object = tables.get(class, reference.as_str())?;
        let new = object.made > since;
        Some(if new { Change::Made(object) } else { Change::Changed(object) })
    });
    let gone = tables.gone.range((since.saturating_add(1), 0)..);
    let gone = gone.filter(move |(_, gone)| gone.made <= since).map(|((generation, _), gone)| {
        Change::Gone { class: gone.class, reference: &gone.reference, generation: *generation }
    });
    there.chain(gone)
}
