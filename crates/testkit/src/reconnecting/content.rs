//! Expected content of the disk.

use crate::error::{Error, Result};
use crate::raw::request::SECTOR_BYTES;

/// Unit of requests in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// Sectors of a block.
pub(super) const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
const SECTOR: usize = SECTOR_BYTES as usize;

/// Stamp of zeroes.
pub(super) const ZERO: u64 = 0;

/// Expected content of one block.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Stamp of its sectors.
    stamp: u64,
    /// True if the block was discarded since: each sector may be zero instead.
    discarded: bool,
    /// Requests in flight: the number of readers, or -1 for a request that changes the block.
    users: i32,
}

/// Effect of a request on its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No change.
    Read,
    /// The blocks receive this stamp.
    Stamp(u64),
    /// The blocks keep their content or become zero.
    Discard,
}

/// Expected content of the disk.
#[derive(Debug)]
pub(super) struct Content {
    blocks: Vec<Block>,
    stamps: u64,
}

/// Blocks of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) count: u32,
}

impl Range {
    pub(super) fn bytes(self) -> u32 {
        self.count * BLOCK_BYTES as u32
    }

    pub(super) fn sector(self) -> u64 {
        self.first * BLOCK_SECTORS
    }
}

impl Content {
    /// Creates the content of a disk whose sectors all have this stamp.
    pub(super) fn new(sectors: u64, stamp: u64) -> Self {
        let block = Block { stamp, discarded: false, users: 0 };
        Self { blocks: vec![block; (sectors / BLOCK_SECTORS) as usize], stamps: stamp }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns a stamp that no other write has.
    pub(super) fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    fn of(&mut self, range: Range) -> &mut [Block] {
        let first = range.first as usize;
        &mut self.blocks[first..first + range.count as usize]
    }

    /// Claims the blocks for a request. Returns false if they conflict with requests in flight.
    pub(super) fn claim(&mut self, range: Range, effect: Effect) -> bool {
        let blocks = self.of(range);
        match effect {
            Effect::Read if blocks.iter().all(|block| block.users >= 0) => {
                blocks.iter_mut().for_each(|block| block.users += 1);
                true
            }
            Effect::Stamp(_) | Effect::Discard if blocks.iter().all(|block| block.users == 0) => {
                blocks.iter_mut().for_each(|block| block.users = -1);
                true
            }
            _ => false,
        }
    }

    /// Releases the blocks of a completed request and applies its effect.
    pub(super) fn settle(&mut self, range: Range, effect: Effect) {
        for block in self.of(range) {
            match effect {
                Effect::Read => block.users -= 1,
                Effect::Stamp(stamp) => *block = Block { stamp, discarded: false, users: 0 },
                Effect::Discard => (block.discarded, block.users) = (true, 0),
            }
        }
    }

    /// Compares data of these blocks with the expected content.
    pub(super) fn compare(&self, range: Range, data: &[u8]) -> Result<()> {
        let mut expected = vec![0; SECTOR];
        for (sector, found) in (range.sector()..).zip(data.chunks(SECTOR)) {
            let block = &self.blocks[(sector / BLOCK_SECTORS) as usize];
            fill_sector(&mut expected, sector, block.stamp);
            let gone = block.discarded && found.iter().all(|byte| *byte == 0);
            if found != expected && !gone {
                return Err(wrong(sector, block, found));
            }
        }
        Ok(())
    }
}

/// Returns the first `bytes` bytes of a disk whose sectors all have this stamp.
#[must_use]
pub fn stamped(bytes: u64, stamp: u64) -> Vec<u8> {
    let count = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
    fill(Range { first: 0, count }, stamp)
}

/// Returns the bytes of a write.
pub(super) fn fill(range: Range, stamp: u64) -> Vec<u8> {
    let mut data = vec![0; range.bytes() as usize];
    for (sector, place) in (range.sector()..).zip(data.chunks_mut(SECTOR)) {
        fill_sector(place, sector, stamp);
    }
    data
}

fn fill_sector(place: &mut [u8], sector: u64, stamp: u64) {
    if stamp == ZERO {
        place.fill(0);
        return;
    }
    for pair in place.chunks_mut(16) {
        pair[..8].copy_from_slice(&sector.to_le_bytes());
        pair[8..].copy_from_slice(&stamp.to_le_bytes());
    }
}

fn wrong(sector: u64, block: &Block, found: &[u8]) -> Error {
    let word = |at: usize| {
        let bytes = found.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (has, stamp, whole) = (word(0), word(8), found.chunks(16).all(|pair| pair == &found[..16]));
    let or = if block.discarded { " or zeroes" } else { "" };
    let what = format!(
        "sector {sector} holds sector {has} with stamp {stamp} ({}) where stamp {}{or} is due",
        if whole { "throughout" } else { "at its start only" },
        block.stamp,
    );
    Error::Reply { request: "a read".into(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_exclude_others_and_are_found() {
        let mut content = Content::new(64 * BLOCK_SECTORS, ZERO);
        let range = Range { first: 3, count: 2 };
        let one = Range { first: 4, count: 1 };
        assert!(content.claim(one, Effect::Read) && content.claim(one, Effect::Read));
        assert!(!content.claim(range, Effect::Discard));
        content.settle(one, Effect::Read);
        content.settle(one, Effect::Read);
        let stamp = content.stamp();
        assert!(content.claim(range, Effect::Stamp(stamp)) && !content.claim(one, Effect::Read));
        content.settle(range, Effect::Stamp(stamp));
        let data = fill(range, stamp);
        content.compare(range, &data).unwrap();
        assert!(content.compare(range, &vec![0; data.len()]).is_err());
        let torn = [&data[..700], &vec![0; data.len() - 700]].concat();
        assert!(content.compare(range, &torn).is_err());
        assert!(content.claim(one, Effect::Discard));
        content.settle(one, Effect::Discard);
        let half = [&data[..4096 + 512], &vec![0; 4096 - 512]].concat();
        content.compare(range, &half).unwrap();
    }
}
