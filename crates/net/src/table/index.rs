//! Index from a number to a slab entry: open addressing with linear probing, at most half full.
//!
//! Numbers are mixed with secrets of the process, so that a guest that invents addresses cannot
//! choose their slots. Removal closes the gap, so that no tombstone slows down later searches.

use std::hash::{BuildHasher, RandomState};

/// Empty slot.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Index {
    places: Box<[u32]>,
    secrets: [u64; 2],
}

impl Index {
    /// Creates an index for `most` numbers.
    pub(super) fn new(most: u32) -> Self {
        let places = (most.max(1) as usize * 2).next_power_of_two();
        let random = RandomState::new();
        // An odd factor loses no information.
        let secrets = [random.hash_one(0u8), random.hash_one(1u8) | 1];
        Self { places: vec![NONE; places].into(), secrets }
    }

    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    /// Returns the first slot of the search for `key`.
    fn home(&self, key: u64) -> usize {
        let [add, factor] = self.secrets;
        let wide = u128::from(key ^ add) * u128::from(factor);
        (((wide >> 64) ^ wide) as usize) & self.mask()
    }

    fn at(&self, place: usize) -> u32 {
        self.places.get(place).copied().unwrap_or(NONE)
    }

    fn set(&mut self, place: usize, at: u32) {
        if let Some(there) = self.places.get_mut(place) {
            *there = at;
        }
    }

    /// Returns the slots in the order of the search for `key`.
    fn walk(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let (home, mask) = (self.home(key), self.mask());
        (0..=mask).map(move |step| (home + step) & mask)
    }

    /// Returns the entry of `key`, as recognised by `is`.
    pub(super) fn find(&self, key: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let filled = self.walk(key).map(|place| self.at(place)).take_while(|at| *at != NONE);
        filled.into_iter().find(|at| is(*at))
    }

    /// Inserts `key`, which must not be present, with the entry `at`.
    pub(super) fn insert(&mut self, key: u64, at: u32) {
        if let Some(place) = self.walk(key).find(|place| self.at(*place) == NONE) {
            self.set(place, at);
        }
    }

    /// Removes `key` with the entry `at`. `key_of` returns the number of each entry that may close
    /// the gap.
    pub(super) fn remove(&mut self, key: u64, at: u32, key_of: impl Fn(u32) -> Option<u64>) {
        let Some(mut gap) = self.walk(key).find(|place| self.at(*place) == at) else { return };
        let mask = self.mask();
        let mut place = gap;
        loop {
            place = (place + 1) & mask;
            let there = self.at(place);
            let Some(home) = (there != NONE).then(|| key_of(there)).flatten() else { break };
            // The entry may close the gap if its own search passes there.
            let from_home = place.wrapping_sub(self.home(home)) & mask;
            let from_gap = place.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.set(gap, there);
                gap = place;
            }
        }
        self.set(gap, NONE);
    }
}
