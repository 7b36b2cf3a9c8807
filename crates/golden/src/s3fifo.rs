//! S3-FIFO: which blocks stay.
//!
//! A new block enters a small queue, a tenth of the room. If it was used again when it reaches the end,
//! it moves to the main queue; if not, it goes, and a ghost queue remembers its number. A block that
//! comes back while its ghost is there enters the main queue. The main queue gives a used block another
//! round. So blocks that are read once, as in a scan, only pass through the small queue.
//! (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023.)

use std::collections::{BTreeMap, VecDeque};

/// Uses that count.
const USES_MAX: u8 = 3;

/// Queues of at most a number of blocks.
#[derive(Debug)]
pub(crate) struct S3Fifo {
    capacity: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Blocks that went, each with the time of its going: a block may come back and go again.
    ghosts: VecDeque<(u32, u64)>,
    /// Number of blocks that went to the ghosts.
    time: u64,
    entries: BTreeMap<u32, Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Small { uses: u8 },
    Main { uses: u8 },
    Ghost { time: u64 },
}

impl S3Fifo {
    /// Creates queues for `capacity` blocks, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            time: 0,
            entries: BTreeMap::new(),
        }
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Returns whether a block must go before another one comes.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Notes a use of a block that is there.
    pub(crate) fn touch(&mut self, block: u32) {
        if let Some(Entry::Small { uses } | Entry::Main { uses }) = self.entries.get_mut(&block) {
            *uses = (*uses + 1).min(USES_MAX);
        }
    }

    /// Adds a block that is not there.
    pub(crate) fn insert(&mut self, block: u32) {
        match self.entries.get(&block) {
            Some(Entry::Small { .. } | Entry::Main { .. }) => {}
            Some(Entry::Ghost { .. }) => self.insert_main(block),
            None => {
                self.entries.insert(block, Entry::Small { uses: 0 });
                self.small.push_back(block);
            }
        }
    }

    /// Adds a block that is known to be worth keeping.
    pub(crate) fn insert_main(&mut self, block: u32) {
        self.entries.insert(block, Entry::Main { uses: 0 });
        self.main.push_back(block);
    }

    /// Removes the block that is worth least and returns it. `None` if there is none.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let small_max = (self.capacity / 10).max(1);
        loop {
            let from_small = self.small.len() >= small_max || self.main.is_empty();
            let found = match from_small {
                true => self.step_small(),
                false => self.step_main(),
            };
            if found.is_some() || (self.small.is_empty() && self.main.is_empty()) {
                return found;
            }
        }
    }

    /// Looks at the end of the small queue. Returns a block that goes.
    fn step_small(&mut self) -> Option<u32> {
        let block = self.small.pop_front()?;
        match self.entries.get(&block) {
            Some(Entry::Small { uses: 0 }) => {
                self.time += 1;
                self.entries.insert(block, Entry::Ghost { time: self.time });
                self.ghosts.push_back((block, self.time));
                self.forget_ghosts();
                Some(block)
            }
            Some(Entry::Small { .. }) => {
                self.insert_main(block);
                None
            }
            _ => None,
        }
    }

    /// Looks at the end of the main queue. Returns a block that goes.
    fn step_main(&mut self) -> Option<u32> {
        let block = self.main.pop_front()?;
        match self.entries.get_mut(&block) {
            Some(Entry::Main { uses: 0 }) => {
                self.entries.remove(&block);
                Some(block)
            }
            Some(Entry::Main { uses }) => {
                *uses -= 1;
                self.main.push_back(block);
                None
            }
            _ => None,
        }
    }

    fn forget_ghosts(&mut self) {
        while self.ghosts.len() > self.capacity {
            let Some((block, time)) = self.ghosts.pop_front() else { return };
            // It may have come back since, and gone again.
            if self.entries.get(&block) == Some(&Entry::Ghost { time }) {
                self.entries.remove(&block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Reads a block through the queues. Returns whether it was there.
    fn read(queues: &mut S3Fifo, there: &mut BTreeSet<u32>, block: u32) -> bool {
        if there.contains(&block) {
            queues.touch(block);
            return true;
        }
        while queues.is_full() {
            assert!(there.remove(&queues.evict().unwrap()));
        }
        queues.insert(block);
        assert!(there.insert(block));
        false
    }

    #[test]
    fn a_scan_flushes_nothing_that_is_used() {
        let (mut queues, mut there) = (S3Fifo::new(100), BTreeSet::new());
        for _ in 0..3 {
            (0..80).for_each(|block| _ = read(&mut queues, &mut there, block));
        }
        // A scan of a hundred times the room.
        (1000..11_000).for_each(|block| _ = read(&mut queues, &mut there, block));
        let hits = (0..80).filter(|block| read(&mut queues, &mut there, *block)).count();
        assert!(hits >= 78, "{hits} of 80 blocks are left");
    }

    #[test]
    fn a_block_that_comes_back_stays() {
        let (mut queues, mut there) = (S3Fifo::new(10), BTreeSet::new());
        (0..30).for_each(|block| _ = read(&mut queues, &mut there, block));
        // Its ghost is there, so it enters the main queue, where a scan does not reach it.
        assert!(!read(&mut queues, &mut there, 25) || there.contains(&25));
        queues.touch(25);
        (100..150).for_each(|block| _ = read(&mut queues, &mut there, block));
        assert!(there.contains(&25));
    }

    #[test]
    fn a_ghost_of_an_earlier_going_does_not_end_a_later_one() {
        let mut queues = S3Fifo::new(3);
        // Block 1 goes and comes back to the main queue, from where it goes without a ghost.
        let go = |queues: &mut S3Fifo, block| {
            queues.insert(block);
            assert_eq!(queues.evict(), Some(block));
        };
        go(&mut queues, 1);
        go(&mut queues, 1);
        assert!(!queues.entries.contains_key(&1), "it left the main queue");
        // It goes again, and two other ghosts follow: the first ghost of 1 is forgotten.
        (1..4).for_each(|block| go(&mut queues, block));
        assert_eq!(queues.ghosts.len(), 3);
        assert!(queues.entries.contains_key(&1), "its second ghost is there");
    }

    proptest::proptest! {
        #[test]
        fn the_queues_have_what_a_set_has(
            capacity in 1usize..40,
            blocks in proptest::collection::vec(0u32..100, 1..500),
        ) {
            let (mut queues, mut there) = (S3Fifo::new(capacity), BTreeSet::new());
            for block in blocks {
                read(&mut queues, &mut there, block);
                assert_eq!(queues.len(), there.len());
                assert!(there.len() <= capacity);
                assert!(queues.ghosts.len() <= capacity);
                assert!(queues.entries.len() <= 2 * capacity + 1);
            }
            let mut left = BTreeSet::new();
            while let Some(block) = queues.evict() {
                assert!(left.insert(block));
            }
            assert_eq!(left, there);
        }
    }
}
