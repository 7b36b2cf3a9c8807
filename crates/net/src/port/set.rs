//! Ports by number, and sets of ports.

use crate::switch::PORTS_MAX;

/// Number of a port in its switch, below [`PORTS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

impl PortId {
    /// Returns the index of the port in tables.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

const WORDS: usize = PORTS_MAX / 64;

/// Set of ports of one switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; WORDS]);

impl PortSet {
    fn word(&mut self, port: PortId) -> Option<(&mut u64, u64)> {
        let bit = 1 << (port.0 % 64);
        self.0.get_mut(port.index() / 64).map(|word| (word, bit))
    }

    /// Inserts a port. Numbers that no port can have are ignored.
    pub fn insert(&mut self, port: PortId) {
        if let Some((word, bit)) = self.word(port) {
            *word |= bit;
        }
    }

    /// Removes a port.
    pub fn remove(&mut self, port: PortId) {
        if let Some((word, bit)) = self.word(port) {
            *word &= !bit;
        }
    }

    /// Returns whether the set contains a port.
    pub fn contains(&self, port: PortId) -> bool {
        self.0.get(port.index() / 64).is_some_and(|word| word >> (port.0 % 64) & 1 != 0)
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the number of ports in the set.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the ports of the set, by number.
    pub fn iter(&self) -> impl Iterator<Item = PortId> + use<> {
        (0u16..).step_by(64).zip(self.0).flat_map(|(base, mut word)| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(PortId(base + bit as u16))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_is_a_set(steps: Vec<(bool, u16)>) {
            let (mut ours, mut theirs) = (PortSet::default(), BTreeSet::new());
            for (insert, number) in steps {
                let port = PortId(number % (PORTS_MAX as u16 + 9));
                if insert {
                    ours.insert(port);
                    if port.index() < PORTS_MAX {
                        theirs.insert(port);
                    }
                } else {
                    ours.remove(port);
                    theirs.remove(&port);
                }
                prop_assert_eq!(ours.contains(port), theirs.contains(&port));
            }
            prop_assert_eq!(ours.len() as usize, theirs.len());
            prop_assert_eq!(ours.is_empty(), theirs.is_empty());
            prop_assert!(ours.iter().eq(theirs));
        }
    }
}
