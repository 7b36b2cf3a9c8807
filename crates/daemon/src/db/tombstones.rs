//! Recent deletions, for clients that know the deleted objects.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::Ref;

/// Most tombstones stored. A client that missed more deletions does not learn of the older ones.
const MOST: usize = 65_536;

/// Generation of a deletion, and its order within that generation.
pub(super) type DeletionStamp = (u64, u64);

/// A deleted object.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) reference: Ref,
    pub(super) made: u64,
}

/// Recent deletions by class.
#[derive(Debug)]
pub(super) struct Tombstones {
    classes: HashMap<&'static str, BTreeMap<DeletionStamp, Tombstone>>,
    /// All deletions, oldest first.
    order: VecDeque<(DeletionStamp, &'static str)>,
    most: usize,
}

impl Default for Tombstones {
    fn default() -> Self {
        Self { classes: HashMap::new(), order: VecDeque::new(), most: MOST }
    }
}

impl Tombstones {
    /// Adds a deletion. It must be later than all stored ones.
    pub(super) fn add(&mut self, class: &'static str, when: DeletionStamp, tombstone: Tombstone) {
        self.classes.entry(class).or_default().insert(when, tombstone);
        self.order.push_back((when, class));
        if self.order.len() > self.most
            && let Some((when, class)) = self.order.pop_front()
            && let Some(ends) = self.classes.get_mut(class)
        {
            ends.remove(&when);
        }
    }

    /// Removes the tombstone of an object that exists again.
    pub(super) fn remove(&mut self, class: &str, reference: &Ref) {
        let Some(ends) = self.classes.get_mut(class) else { return };
        // An object that comes back was most often deleted recently, so search from the end.
        let found = ends.iter().rev().find(|(_, tombstone)| tombstone.reference == *reference);
        let Some(when) = found.map(|(when, _)| *when) else { return };
        ends.remove(&when);
        if let Ok(at) = self.order.binary_search_by_key(&when, |(when, _)| *when) {
            self.order.remove(at);
        }
    }

    /// Returns the deletions of a class since `first`, oldest first.
    pub(super) fn from(
        &self,
        class: &str,
        first: DeletionStamp,
    ) -> impl Iterator<Item = (&DeletionStamp, &Tombstone)> + use<'_> {
        self.classes.get(class).into_iter().flat_map(move |ends| ends.range(first..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(tombstones: &Tombstones) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        for class in ["VM", "VDI"] {
            all.extend(
                tombstones.from(class, (0, 0)).map(|(when, tombstone)| (*when, class, tombstone)),
            );
        }
        all.sort_by_key(|(when, ..)| *when);
        let kept = all.iter().map(|(when, class, _)| (*when, *class));
        assert_eq!(kept.collect::<Vec<_>>(), Vec::from(tombstones.order.clone()), "two books");
        all.into_iter()
            .map(|(_, class, tombstone)| (class, tombstone.reference.to_string()))
            .collect()
    }

    #[test]
    fn the_first_ones_are_forgotten_whatever_their_class() {
        let mut tombstones = Tombstones { most: 3, ..Tombstones::default() };
        for (number, class) in ["VM", "VDI", "VDI", "VM", "VDI"].into_iter().enumerate() {
            let tombstone =
                Tombstone { reference: Ref::from(number.to_string().as_str()), made: 1 };
            tombstones.add(class, (number as u64 / 2, number as u64), tombstone);
        }
        let is = |class: &'static str, number: &str| (class, number.to_owned());
        assert_eq!(all(&tombstones), [is("VDI", "2"), is("VM", "3"), is("VDI", "4")]);
        assert_eq!(tombstones.from("VDI", (2, 0)).count(), 1);
        tombstones.remove("VM", &Ref::from("2"));
        tombstones.remove("VDI", &Ref::from("0"));
        assert_eq!(all(&tombstones).len(), 3, "there is none such");
        tombstones.remove("VDI", &Ref::from("2"));
        assert_eq!(all(&tombstones), [is("VM", "3"), is("VDI", "4")]);
    }
}
