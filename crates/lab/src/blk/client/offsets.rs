//! Addresses of requests.

use anyhow::{Context, Result};

use super::{Load, Pattern};

/// Reason of a client that has no stretch left.
const USED_UP: &str = "every part of the disk was written before the window ended: give a --scratch \
                       on slower storage";

/// Byte offsets of requests, the same sequence in every sample.
pub(crate) struct Offsets {
    load: Load,
    blocks: u64,
    state: u64,
    /// Stretches of [`Pattern::EachOnce`] that had no request yet, in random order.
    left: Vec<u64>,
}

impl Offsets {
    /// Creates the sequence of a client. Several clients have different sequences.
    pub(crate) fn new(load: Load, blocks: u64, client: usize) -> Self {
        let state = match load.pattern {
            Pattern::Random | Pattern::EachOnce(_) => {
                0x9e37_79b9_7f4a_7c15u64.rotate_left(client as u32 % 64)
            }
            Pattern::Sequential => 0,
        };
        let mut offsets = Self { load, blocks, state, left: Vec::new() };
        if let Pattern::EachOnce(stretch) = load.pattern {
            let mut left: Vec<u64> = (0..blocks / offsets.blocks_in(stretch)).collect();
            for last in (1..left.len()).rev() {
                left.swap(last, offsets.random(last as u64 + 1) as usize);
            }
            offsets.left = left;
        }
        offsets
    }

    /// Returns the next offset.
    ///
    /// # Errors
    /// Every stretch of [`Pattern::EachOnce`] had its request.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<u64> {
        let block = match self.load.pattern {
            Pattern::Sequential => {
                let block = self.state;
                self.state = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
            Pattern::Random => self.random(self.blocks),
            Pattern::EachOnce(stretch) => {
                let blocks = self.blocks_in(stretch);
                self.left.pop().context(USED_UP)? * blocks + self.random(blocks)
            }
        };
        Ok(block * self.load.bytes as u64)
    }

    /// Returns a random number below `end`.
    #[inline]
    fn random(&mut self, end: u64) -> u64 {
        // Xorshift; the high half of the product maps it onto the range without a division.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((u128::from(self.state) * u128::from(end)) >> 64) as u64
    }

    fn blocks_in(&self, stretch: u64) -> u64 {
        (stretch / self.load.bytes as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pattern: Pattern) -> Load {
        Load { pattern, ..Load::default() }
    }

    #[test]
    fn offsets_stay_on_the_disk_and_spread() {
        let mut random = Offsets::new(load(Pattern::Random), 10, 3);
        let mut hits = [0; 10];
        for _ in 0..1000 {
            let offset = random.next().unwrap();
            assert_eq!(offset % 4096, 0);
            hits[(offset / 4096) as usize] += 1;
        }
        assert!(hits.iter().all(|h| *h > 50), "{hits:?}");
        let mut sequential = Offsets::new(load(Pattern::Sequential), 2, 0);
        let three: Vec<u64> = (0..3).map(|_| sequential.next().unwrap()).collect();
        assert_eq!(three, [0, 4096, 0]);
    }

    #[test]
    fn each_stretch_has_one_request_in_random_order_and_none_a_second() {
        const STRETCH: u64 = 128 << 10;
        let mut once = Offsets::new(load(Pattern::EachOnce(STRETCH)), 32 * 100, 0);
        let all: Vec<u64> = (0..100).map(|_| once.next().unwrap()).collect();
        assert!(once.next().unwrap_err().to_string().contains("--scratch"));
        assert!(all.iter().all(|offset| offset % 4096 == 0));
        assert!(all.iter().any(|offset| offset % STRETCH != 0));
        let mut stretches: Vec<u64> = all.iter().map(|offset| offset / STRETCH).collect();
        assert!(!stretches.is_sorted());
        stretches.sort_unstable();
        assert_eq!(stretches, (0..100).collect::<Vec<_>>());
    }
}
