//! From a number to a place in a slab: open addressing with linear probing, at most half full.
//!
//! Numbers are mixed with secrets of the process, so that a guest that makes up addresses cannot
//! choose where they go. Taking one out closes the gap, so nothing is left behind that would slow
//! down the next look.

use std::hash::{BuildHasher, RandomState};

/// No place.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Index {
    places: Box<[u32]>,
    secrets: [u64; 2],
}

impl Index {
    /// Room for `most` numbers.
    pub(super) fn new(most: u32) -> Self {
        let places = (most.max(1) as usize * 2).next_power_of_two();
        let random = RandomState::new();
        // An odd factor loses nothing.
        let secrets = [random.hash_one(0u8), random.hash_one(1u8) | 1];
        Self { places: vec![NONE; places].into(), secrets }
    }

    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    /// Where a look for `key` begins.
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

    /// Places from `key`'s first one on.
    fn walk(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let (home, mask) = (self.home(key), self.mask());
        (0..=mask).map(move |step| (home + step) & mask)
    }

    /// Where `key` is, as `is` recognises it.
    pub(super) fn find(&self, key: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let filled = self.walk(key).map(|place| self.at(place)).take_while(|at| *at != NONE);
        filled.into_iter().find(|at| is(*at))
    }

    /// `key`, which is not in it, is at `at`.
    pub(super) fn insert(&mut self, key: u64, at: u32) {
        if let Some(place) = self.walk(key).find(|place| self.at(*place) == NONE) {
            self.set(place, at);
        }
    }

    /// `key` is not at `at` any more. `key_of` tells the number of those that have to close up.
    pub(super) fn remove(&mut self, key: u64, at: u32, key_of: impl Fn(u32) -> Option<u64>) {
        let Some(mut gap) = self.walk(key).find(|place| self.at(*place) == at) else { return };
        let mask = self.mask();
        let mut place = gap;
        loop {
            place = (place + 1) & mask;
            let there = self.at(place);
            let Some(home) = (there != NONE).then(|| key_of(there)).flatten() else { break };
            // It may close the gap if its own look passes by there.
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
