//! One request, as the parts in which the storage serves it.

use std::ops::Range;

use memory::Buffers;

use super::ranges::RangeTicket;
use crate::RequestKind;
use crate::bounce::BounceBuffer;

/// Longest request that is merged as a whole, in bytes with its covering blocks. For a longer one,
/// reading all of it costs more than separate operations for its ends.
const WHOLE_MERGE: u64 = 64 << 10;

/// Request in progress.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) tag: u32,
    pub(super) kind: RequestKind,
    /// Bytes of the disk that are not done yet.
    pub(super) left: Range<u64>,
    /// Data of these bytes, except of those that are in [`State::Passed`].
    pub(super) buffers: Buffers,
    /// Place in the table of ranges; `None` for a request that changes nothing.
    pub(super) ticket: Option<RangeTicket>,
    pub(super) state: State,
}

/// State of a request.
#[derive(Debug)]
pub(super) enum State {
    /// It waits for its blocks.
    Queued,
    /// It waits for a bounce buffer.
    Starved,
    /// The storage has bytes up to this one with the guest's buffers.
    Passed(u64),
    /// The storage reads or writes covering blocks.
    Merging(Merge),
}

/// Covering blocks of a part, in a bounce buffer.
#[derive(Debug)]
pub(super) struct Merge {
    pub(super) buffer: BounceBuffer,
    pub(super) blocks: Range<u64>,
    /// End of the part, which begins at the first byte that is left.
    pub(super) end: u64,
    /// Whether the changed blocks are being written.
    pub(super) writes: bool,
}

/// Next part of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The bytes up to this one are whole blocks.
    Pass(u64),
    /// The bytes up to `end` lie in these blocks.
    Merge { blocks: Range<u64>, end: u64 },
}

/// Returns the blocks of `block` bytes that cover `range`.
pub(super) fn covering(range: &Range<u64>, block: u64) -> Range<u64> {
    range.start - range.start % block..range.end.next_multiple_of(block)
}

/// Returns the whole blocks of `block` bytes inside `range`; an empty range if there is none.
pub(super) fn inside(range: &Range<u64>, block: u64) -> Range<u64> {
    let end = range.end - range.end % block;
    range.start.next_multiple_of(block).min(end)..end
}

/// Returns the next part of a request of `kind` over `left`, which is not empty.
pub(super) fn next_part(kind: RequestKind, left: &Range<u64>, block: u64) -> Part {
    let blocks = covering(left, block);
    if blocks == *left {
        return Part::Pass(left.end);
    }
    let has_data = matches!(kind, RequestKind::Read | RequestKind::Write { .. });
    if has_data && blocks.end - blocks.start <= WHOLE_MERGE {
        return Part::Merge { blocks, end: left.end };
    }
    let first = blocks.start + block;
    if blocks.start != left.start || first > left.end {
        return Part::Merge { blocks: blocks.start..first, end: left.end.min(first) };
    }
    Part::Pass(left.end - left.end % block)
}

impl Merge {
    /// Returns the part's bytes in the buffer.
    fn part(&self, start: u64) -> Buffers {
        // A merge covers at most `WHOLE_MERGE` bytes, or one block.
        let (offset, len) = (start - self.blocks.start, self.end - start);
        self.buffer.part(offset as usize, len as usize)
    }

    /// Returns all blocks in the buffer.
    pub(super) fn all(&self) -> Buffers {
        self.buffer.part(0, (self.blocks.end - self.blocks.start) as usize)
    }
}

impl Work {
    /// Returns whether the written data must be durable on completion.
    pub(super) fn durable(&self) -> bool {
        match self.kind {
            RequestKind::Write { durable } | RequestKind::WriteZeroes { durable, .. } => durable,
            _ => false,
        }
    }

    /// Copies between the request's buffers and the blocks of a merge that were read. The guest's
    /// memory is accessed once.
    pub(super) fn copy(&mut self, merge: &Merge) {
        let part = merge.part(self.left.start);
        match self.kind {
            RequestKind::Read => _ = self.buffers.copy_from_buffers(&part),
            RequestKind::Write { .. } => _ = part.copy_from_buffers(&self.buffers),
            _ => return part.zero(),
        }
        self.buffers.advance(part.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the parts of a request: the end of each, and its blocks if it is merged.
    fn parts(kind: RequestKind, mut left: Range<u64>) -> Vec<(u64, Option<Range<u64>>)> {
        let mut found = vec![];
        while !left.is_empty() {
            let (end, blocks) = match next_part(kind, &left, 4096) {
                Part::Pass(end) => (end, None),
                Part::Merge { blocks, end } => (end, Some(blocks)),
            };
            assert!(end > left.start && end <= left.end, "{left:?}");
            left.start = end;
            found.push((end, blocks));
        }
        found
    }

    #[test]
    fn ends_are_merged_and_the_middle_is_passed() {
        let (read, write) = (RequestKind::Read, RequestKind::Write { durable: false });
        let zeroes = RequestKind::WriteZeroes { unmap: true, durable: false };
        let mega = 1 << 20;
        for kind in [read, write] {
            assert_eq!(parts(kind, 4096..12288), [(12288, None)]);
            assert_eq!(parts(kind, 512..1024), [(1024, Some(0..4096))]);
            assert_eq!(parts(kind, 512..16384), [(16384, Some(0..16384))]);
            assert_eq!(
                parts(kind, 512..mega + 512),
                [(4096, Some(0..4096)), (mega, None), (mega + 512, Some(mega..mega + 4096))]
            );
            assert_eq!(
                parts(kind, 0..mega + 512),
                [(mega, None), (mega + 512, Some(mega..mega + 4096))]
            );
            assert_eq!(parts(kind, 512..mega), [(4096, Some(0..4096)), (mega, None)]);
        }
        assert_eq!(
            parts(zeroes, 512..12800),
            [(4096, Some(0..4096)), (12288, None), (12800, Some(12288..16384))]
        );
        assert_eq!(parts(zeroes, 4000..4200), [(4096, Some(0..4096)), (4200, Some(4096..8192))]);
        assert_eq!(parts(zeroes, 4096..4608), [(4608, Some(4096..8192))]);
    }

    #[test]
    fn whole_blocks_inside_of_a_range() {
        assert_eq!(inside(&(512..12800), 4096), 4096..12288);
        assert_eq!(inside(&(4096..8192), 4096), 4096..8192);
        for none in [512..1024, 512..4096 + 512, 4096..4608] {
            assert!(inside(&none, 4096).is_empty(), "{none:?}");
        }
    }
}
