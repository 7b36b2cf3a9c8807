//! Reads.

use ::disk::{IoError, Request, RequestKind};
use image::channel::ReadPlan;
use image::format::PieceSource;
use image::map::{Base, Hold, Layout, Word};
use image::shared::QuestionKind;
use reactor::Context;
use rustix::io::Errno;

use crate::channel::{MappedChannel, Target};
use crate::piece::{Few, Phase};

/// Where the first bytes of a piece are.
enum Run {
    Ask(QuestionKind),
    /// In the file, from this byte on.
    File(u64),
    /// In a file of the layers below, from this byte on.
    Lower(usize, u64),
    Below,
    Zero,
    /// In several places, which the owner describes.
    Mixed,
}

/// Returns the byte in the file of a place, and `skip` bytes later.
pub(crate) fn byte_of(layout: &Layout, word: Word, skip: u64) -> u64 {
    (word.place().units() << layout.unit_bits) + skip
}

impl MappedChannel {
    /// Submits a read, and cuts off what lies elsewhere.
    pub(crate) fn plan_read(&mut self, context: &mut Context<'_>, index: u32) {
        let mut holds = Few::default();
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let (offset, len) = (piece.offset, piece.len);
        std::mem::swap(&mut holds, &mut piece.holds);
        let (run, run_len) = self.run(offset, len, &mut holds);
        self.cut(index, run_len);
        let Some(piece) = self.pieces.get_mut(index) else { return };
        piece.holds = holds;
        match run {
            Run::Ask(question) => self.ask(index, question),
            Run::File(at) => self.read(context, index, Target::File, at),
            Run::Lower(file, at) => self.read(context, index, Target::Lower(file), at),
            Run::Below => self.read(context, index, Target::Below, offset),
            Run::Mixed => {
                let granule = offset >> self.layout.granule_bits;
                self.ask(index, QuestionKind::Describe(granule));
            }
            Run::Zero => {
                piece.buffers.zero();
                self.end_piece(index, Ok(()));
            }
        }
    }

    /// Reads the parts of a mixed granule.
    pub(crate) fn read_pieces(
        &mut self,
        context: &mut Context<'_>,
        index: u32,
        parts: &[image::format::Piece],
    ) {
        // All parts lie where they are as long as the request holds its epoch.
        self.hold_until_end(index);
        let bytes = 1_u64 << self.layout.granule_bits;
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let (first, last) = (piece.offset % bytes, piece.offset % bytes + piece.len);
        let (mut at, mut index) = (0, Some(index));
        for part in parts {
            let part_end = at + part.len as u64;
            let (start, end) = (at.max(first), part_end.min(last));
            if let Some(one) = index.filter(|_| start < end) {
                // The rest is not planned: it is read from the next part.
                index = self.cut_unplanned(one, end - start);
                self.read_part(context, one, &part.source, start - at);
            }
            at = part_end;
        }
        if let Some(rest) = index {
            self.end_piece(rest, Err(IoError::Storage(Errno::IO)));
        }
    }

    fn read_part(
        &mut self,
        context: &mut Context<'_>,
        index: u32,
        source: &PieceSource,
        skip: u64,
    ) {
        let below_size = self.below_size();
        let Some(piece) = self.pieces.get_mut(index) else { return };
        match source {
            PieceSource::Bytes(bytes) => {
                let bytes = bytes.get(skip as usize..).unwrap_or_default();
                piece.buffers.write(bytes);
                self.end_piece(index, Ok(()));
            }
            PieceSource::File(offset) => self.read(context, index, Target::File, offset + skip),
            PieceSource::Below if piece.offset < below_size => {
                let (offset, room) = (piece.offset, below_size - piece.offset);
                if let Some(behind) = self.cut_unplanned(index, room) {
                    self.read_part(context, behind, &PieceSource::Zero, 0);
                }
                self.read(context, index, Target::Below, offset);
            }
            PieceSource::Below | PieceSource::Zero => {
                piece.buffers.zero();
                self.end_piece(index, Ok(()));
            }
        }
    }

    fn read(&mut self, context: &mut Context<'_>, index: u32, target: Target, offset: u64) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        piece.phase = Phase::Submitted;
        let (buffers, len) = (std::mem::take(&mut piece.buffers), piece.len);
        let (kind, tag) = (RequestKind::Read, index);
        self.submit_piece(context, target, Request { kind, offset, len, buffers, tag });
    }

    /// Returns where the first bytes are, and how many lie there together. Joins the epochs of all
    /// places in it.
    fn run(&mut self, offset: u64, len: u64, holds: &mut Few<Hold>) -> (Run, u64) {
        let layout = self.layout;
        let mut total = 0;
        let mut first = None;
        while total < len {
            let at = offset + total;
            let (run, run_len, hold) = self.part(&layout, at, len - total);
            let continues = match (&first, &run) {
                (None, _) => true,
                (Some(Run::File(start)), Run::File(next)) => start + total == *next,
                (Some(Run::Lower(file, start)), Run::Lower(same, next)) => {
                    file == same && start + total == *next
                }
                (Some(Run::Below), Run::Below) | (Some(Run::Zero), Run::Zero) => true,
                _ => false,
            };
            if !continues {
                hold.into_iter().for_each(|hold| self.map.leave(hold));
                break;
            }
            holds.extend(hold);
            first.get_or_insert(run);
            total += run_len;
            if matches!(first, Some(Run::Ask(_) | Run::Mixed)) {
                break;
            }
        }
        (first.unwrap_or(Run::Zero), total)
    }

    /// Returns where the bytes at an offset are, within their granule.
    fn part(&mut self, layout: &Layout, at: u64, len: u64) -> (Run, u64, Option<Hold>) {
        let granule_bytes = 1_u64 << layout.granule_bits;
        let skip = at % granule_bytes;
        let len = len.min(granule_bytes - skip);
        match self.map.plan_read(at >> layout.granule_bits) {
            ReadPlan::Ask(question) => (Run::Ask(question), len, None),
            ReadPlan::Describe { hold } => (Run::Mixed, len, Some(hold)),
            ReadPlan::Base(Base::Below) if self.note_lower(layout, at >> layout.granule_bits) => {
                self.part(layout, at, len)
            }
            ReadPlan::Base(base) => {
                let (run, len) = self.base_run(base, at, len);
                (run, len, None)
            }
            ReadPlan::Parts { hold, word } => {
                let (is_stored, len) = blocks_run(layout, word.mask(), skip, len);
                if is_stored {
                    let at = byte_of(layout, word, skip);
                    let Some(file) = word.lower_file() else {
                        return (Run::File(at), len, Some(hold));
                    };
                    // The layers below do not change.
                    self.map.leave(hold);
                    return (Run::Lower(file, at), len, None);
                }
                self.map.leave(hold);
                let (run, len) = self.base_run(word.base(), at, len);
                (run, len, None)
            }
        }
    }

    /// Notes in the map where the layers below have a granule, if they know it.
    fn note_lower(&mut self, layout: &Layout, granule: u64) -> bool {
        let Some(below) = &mut self.below else { return false };
        let word = below.word(layout, granule);
        word.is_some_and(|word| self.map.note_lower(granule, word))
    }

    fn base_run(&mut self, base: Base, at: u64, len: u64) -> (Run, u64) {
        let below = self.below.as_mut().filter(|_| base == Base::Below);
        if let Some(found) = below.and_then(|below| below.locate(at, len)) {
            let run = found.file.map_or(Run::Zero, |file| Run::Lower(file, found.offset));
            return (run, found.len);
        }
        match base {
            Base::Below if at < self.below_size() => (Run::Below, len.min(self.below_size() - at)),
            _ => (Run::Zero, len),
        }
    }
}

/// Returns whether the block at byte `skip` of a granule is in the mask, and how many bytes from
/// there on are alike.
pub(crate) fn blocks_run(layout: &Layout, mask: u16, skip: u64, len: u64) -> (bool, u64) {
    let block_of = |byte: u64| byte >> layout.block_bits;
    let is_stored = |block: u64| mask >> block.min(15) & 1 == 1;
    let first = is_stored(block_of(skip));
    let mut end = skip;
    while end < skip + len && is_stored(block_of(end)) == first {
        end = (block_of(end) + 1) << layout.block_bits;
    }
    (first, end.min(skip + len) - skip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_alike_are_one_run() {
        let layout =
            Layout { granules: 1, granule_bits: 16, block_bits: 12, unit_bits: 9, page_bits: 9 };
        let mask = 0b0110;
        assert_eq!(blocks_run(&layout, mask, 0, 65536), (false, 4096));
        assert_eq!(blocks_run(&layout, mask, 4608, 65536 - 4608), (true, 8192 - 512));
        assert_eq!(blocks_run(&layout, mask, 3 * 4096, 13 * 4096), (false, 13 * 4096));
        assert_eq!(blocks_run(&layout, mask, 8192, 512), (true, 512));
        assert_eq!(blocks_run(&layout, u16::MAX, 512, 65024), (true, 65024));
    }
}
