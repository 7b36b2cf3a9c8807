//! Addresses of requests.

use super::{Load, Pattern};

/// Byte offsets of requests, the same sequence in every sample.
pub(super) struct Offsets {
    load: Load,
    blocks: u64,
    state: u64,
}

impl Offsets {
    /// Creates the sequence of a client. Several clients have different sequences.
    pub(super) fn new(load: Load, blocks: u64, client: usize) -> Self {
        let state = match load.pattern {
            Pattern::Random => 0x9e37_79b9_7f4a_7c15u64.rotate_left(client as u32 % 64),
            Pattern::Sequential => 0,
        };
        Self { load, blocks, state }
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        let block = match self.load.pattern {
            Pattern::Sequential => {
                let block = self.state;
                self.state = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
            Pattern::Random => {
                // Xorshift; the high half of the product maps it onto the blocks without a
                // division.
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                ((u128::from(self.state) * u128::from(self.blocks)) >> 64) as u64
            }
        };
        block * self.load.bytes as u64
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
            let offset = random.next();
            assert_eq!(offset % 4096, 0);
            hits[(offset / 4096) as usize] += 1;
        }
        assert!(hits.iter().all(|h| *h > 50), "{hits:?}");
        let mut sequential = Offsets::new(load(Pattern::Sequential), 2, 0);
        let three: Vec<u64> = (0..3).map(|_| sequential.next()).collect();
        assert_eq!(three, [0, 4096, 0]);
    }
}
