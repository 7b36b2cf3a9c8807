//! Stored extents and holes of an overlay.

use ::disk::{Disk, Extent, IoError};

use crate::GRANULE;
use crate::memory::OverlayMemory;
use crate::word::Word;

/// Returns at most `limit` extents of a range, as [`Disk::extents`] does.
pub(crate) fn find(
    memory: &OverlayMemory,
    base: &dyn Disk,
    (offset, len): (u64, u64),
    limit: usize,
) -> Result<Vec<Extent>, IoError> {
    let mut found: Vec<Extent> = Vec::new();
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let (word, next) = alike(memory, at, end);
        let parts = match word {
            Word::Base => base.extents(at, next - at, limit)?,
            Word::Zero => vec![Extent { len: next - at, hole: true }],
            Word::Slot(_) | Word::Place(_) => vec![Extent { len: next - at, hole: false }],
        };
        for part in parts {
            let count = found.len();
            match found.last_mut() {
                Some(last) if last.hole == part.hole => last.len += part.len,
                _ if count == limit => return Ok(found),
                _ => found.push(part),
            }
            at += part.len;
        }
    }
    Ok(found)
}

/// Returns the word at `at`, and where granules begin that are not of its kind.
fn alike(memory: &OverlayMemory, at: u64, end: u64) -> (Word, u64) {
    let first = memory.word(at / GRANULE);
    if first == Word::Base {
        let mut next = end;
        memory.each_word(at / GRANULE, |granule, _| {
            next = end.min(granule * GRANULE);
            false
        });
        return (first, next.max(at + 1).min(end));
    }
    let is_alike = |word: Word| match first {
        Word::Zero => word == Word::Zero,
        _ => word.takes_space(),
    };
    let mut next = (at / GRANULE + 1) * GRANULE;
    while next < end && is_alike(memory.word(next / GRANULE)) {
        next += GRANULE;
    }
    (first, next.min(end))
}
