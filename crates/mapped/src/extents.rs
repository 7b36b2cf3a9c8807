//! Data and holes of a mapped disk, for callers that may wait.

use std::sync::Arc;

use disk::{Disk, Extent, IoError};
use image::map::{Base, Kind, Layout, Word};
use image::shared::{AnswerKind, Question, QuestionKind};
use rustix::io::Errno;

use crate::disk::MappedDisk;
use crate::mailbox::Mailbox;
use crate::read::blocks_run;
use crate::service::Service;

/// Place of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Stored,
    Zero,
    Below,
}

/// Thread that asks the owner of an image.
pub(crate) struct Asker {
    service: Arc<dyn Service>,
    mailbox: Arc<Mailbox>,
    number: u32,
}

impl Drop for Asker {
    fn drop(&mut self) {
        Arc::clone(&self.service).close_channel(self.number);
    }
}

impl Asker {
    /// Registers the calling thread. `None` if the owner has stopped.
    pub(crate) fn open(service: Arc<dyn Service>) -> Option<Self> {
        let mailbox = Arc::<Mailbox>::default();
        let number = service.open_asker(Arc::clone(&mailbox))?;
        Some(Self { service, mailbox, number })
    }

    /// Returns extents as [`Disk::extents`] does.
    pub(crate) fn extents(
        &self,
        disk: &MappedDisk,
        offset: u64,
        len: u64,
        limit: usize,
    ) -> Result<Vec<Extent>, IoError> {
        let layout = *self.service.shared().map.layout();
        let (end, limit) = (offset + len, limit.max(1));
        let mut found = Extents { list: Vec::new(), limit };
        let (mut at, mut words) = (offset, Page::default());
        while at < end && !found.is_full() {
            let (source, run) = self.run(&layout, at, end, &mut words)?;
            let below = disk.below().filter(|below| at < below.geometry().size);
            match below.filter(|_| source == Source::Below) {
                Some(below) => {
                    let run = run.min(below.geometry().size - at);
                    for extent in below.extents(at, run, limit)? {
                        found.push(extent);
                        at += extent.len;
                    }
                }
                None => {
                    found.push(Extent { len: run, hole: source != Source::Stored });
                    at += run;
                }
            }
        }
        let block = disk.geometry().block_size.into();
        let mut list = whole_blocks(found.list, offset, block);
        list.truncate(limit);
        cut_end(&mut list, offset, end, block);
        Ok(list)
    }

    /// Returns the place of the byte at `at`, and how many bytes up to `end` are alike.
    fn run(
        &self,
        layout: &Layout,
        at: u64,
        end: u64,
        page: &mut Page,
    ) -> Result<(Source, u64), IoError> {
        let granule_bytes = 1_u64 << layout.granule_bits;
        let (mut next, mut first) = (at, None);
        while next < end {
            let granule = next >> layout.granule_bits;
            let skip = next % granule_bytes;
            let (source, len) =
                source_of(layout, self.word(layout, granule, page)?, skip, granule_bytes - skip);
            if *first.get_or_insert(source) != source {
                break;
            }
            next += len;
            // A page at a time: the caller may want few extents.
            if layout.page_of(next >> layout.granule_bits) != layout.page_of(granule) {
                break;
            }
        }
        Ok((first.unwrap_or(Source::Zero), next.min(end) - at))
    }

    fn word(&self, layout: &Layout, granule: u64, page: &mut Page) -> Result<Word, IoError> {
        let number = layout.page_of(granule);
        if page.number != Some(number) {
            *page = Page { number: Some(number), words: self.ask(granule)? };
        }
        let index = granule - layout.granules_of(number).start;
        let word = usize::try_from(index).ok().and_then(|index| page.words.get(index));
        // What the map does not have is data, to be on the safe side.
        Ok(word.copied().unwrap_or(Word::MIXED))
    }

    fn ask(&self, granule: u64) -> Result<Arc<[Word]>, IoError> {
        let kind = QuestionKind::Words(granule);
        self.service.shared().ask(Question { channel: self.number, tag: 0, kind });
        Arc::clone(&self.service).notify();
        match self.mailbox.wait().map(|answer| answer.kind) {
            Some(AnswerKind::Words(words)) => Ok(words),
            Some(AnswerKind::Done(Err(errno))) => Err(IoError::Storage(errno)),
            _ => Err(IoError::Storage(Errno::IO)),
        }
    }
}

/// Words of the page that was asked for last.
#[derive(Default)]
struct Page {
    number: Option<u64>,
    words: Arc<[Word]>,
}

/// Extents without neighbours that are alike.
struct Extents {
    list: Vec<Extent>,
    limit: usize,
}

impl Extents {
    /// Returns whether another extent has begun behind the last one that is wanted.
    fn is_full(&self) -> bool {
        self.list.len() > self.limit
    }

    fn push(&mut self, next: Extent) {
        match self.list.last_mut() {
            Some(last) if last.hole == next.hole => last.len += next.len,
            _ => self.list.push(next),
        }
    }
}

/// Returns the place of byte `skip` of a granule, and how many of `len` bytes are alike.
fn source_of(layout: &Layout, word: Word, skip: u64, len: u64) -> (Source, u64) {
    let base = match word.base() {
        Base::Below => Source::Below,
        Base::Zero => Source::Zero,
    };
    match word.kind() {
        Kind::Below | Kind::Zero => (base, len),
        Kind::OverBelow | Kind::OverZero => {
            let (is_stored, len) = blocks_run(layout, word.mask(), skip, len);
            (if is_stored { Source::Stored } else { base }, len)
        }
        // Compressed, or in several places.
        _ => (Source::Stored, len),
    }
}

/// Makes holes smaller, so that they begin and end at whole blocks. The first one may begin at
/// `offset`, and the last one ends where it ends.
fn whole_blocks(list: Vec<Extent>, offset: u64, block: u64) -> Vec<Extent> {
    let end = list.iter().fold(offset, |at, extent| at + extent.len);
    let mut out = Extents { list: Vec::new(), limit: list.len() };
    let mut at = offset;
    for extent in list {
        let next = at + extent.len;
        let first = if at == offset { at } else { at.next_multiple_of(block) };
        let last = if next == end { next } else { next - next % block };
        let hole = if extent.hole && first < last { first..last } else { next..next };
        for (len, hole) in
            [(hole.start - at, false), (hole.end - hole.start, true), (next - hole.end, false)]
        {
            if len > 0 {
                out.push(Extent { len, hole });
            }
        }
        at = next;
    }
    out.list
}

/// Lets extents that end before `end` end at a whole block.
fn cut_end(list: &mut Vec<Extent>, offset: u64, end: u64, block: u64) {
    let found = list.iter().fold(offset, |at, extent| at + extent.len);
    let Some(last) = list.last_mut().filter(|_| found < end) else { return };
    last.len = last.len.saturating_sub(found % block);
    if last.len == 0 {
        list.pop();
    }
    if list.is_empty() {
        list.push(Extent { len: block.min(end - offset), hole: false });
    }
}

#[cfg(test)]
mod tests {
    use image::map::Place;

    use super::*;

    const LAYOUT: Layout =
        Layout { granules: 2, granule_bits: 16, block_bits: 12, unit_bits: 9, page_bits: 9 };

    fn extent(len: u64, hole: bool) -> Extent {
        Extent { len, hole }
    }

    #[test]
    fn each_kind_of_word_has_its_source() {
        let place = Place::new(128).unwrap();
        let at = |word, skip| source_of(&LAYOUT, word, skip, 65536 - skip);
        assert_eq!(at(Word::BELOW, 512), (Source::Below, 65024));
        assert_eq!(at(Word::ZERO, 0), (Source::Zero, 65536));
        assert_eq!(at(Word::MIXED, 0), (Source::Stored, 65536));
        assert_eq!(at(Word::shared(place), 0), (Source::Stored, 65536));
        let over_zero = Word::data(place, 2, Base::Zero);
        assert_eq!(at(over_zero, 0), (Source::Zero, 4096));
        assert_eq!(at(over_zero, 5120), (Source::Stored, 3072));
        assert_eq!(at(Word::data(place, 2, Base::Below), 8192), (Source::Below, 57344));
    }

    #[test]
    fn a_hole_has_whole_blocks() {
        let list = vec![extent(512, false), extent(8192, true), extent(512, false)];
        let expected = [extent(4096, false), extent(4096, true), extent(1024, false)];
        assert_eq!(whole_blocks(list, 0, 4096), expected);
        let small = vec![extent(512, false), extent(512, true), extent(3072, false)];
        assert_eq!(whole_blocks(small, 0, 4096), [extent(4096, false)]);
        let odd = vec![extent(700, true), extent(3396, false)];
        assert_eq!(whole_blocks(odd, 4096, 512), [extent(512, true), extent(3584, false)]);
    }

    #[test]
    fn extents_that_end_early_end_at_a_whole_block() {
        for (len, end, expected) in [(5000, 8192, 4096), (8192, 8192, 8192), (512, 8192, 4096)] {
            let mut list = vec![extent(len, false)];
            cut_end(&mut list, 0, end, 4096);
            assert_eq!(list, [extent(expected, false)]);
        }
    }
}
