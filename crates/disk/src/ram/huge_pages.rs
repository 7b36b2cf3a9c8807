//! Huge pages of a memory disk.
//!
//! A copy between 4 KiB pages waits for address translation: 128 KiB take a quarter longer than
//! between huge pages. A memfd begins with small pages. A piece of 2 MiB that is full is collapsed
//! into a huge page, by a thread of its own. A piece with holes stays as it is, so that a sparse disk
//! does not grow.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};

use memory::{HUGE_PAGE, MemoryError};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::Contents;

/// Pieces that wait for the thread. When there are more, a piece is tried again after later writes.
const QUEUE: usize = 1024;
/// Bytes that are written to a piece before it is tried again.
const AGAIN: u32 = HUGE_PAGE as u32 / 2;

/// Attempts at a full piece before further writes to it.
const ATTEMPTS: u32 = 3;

/// Bytes that were written to each piece since its last discard, until it is tried.
#[derive(Debug)]
pub(super) struct HugePages {
    written: Box<[AtomicU32]>,
}

/// A piece that may be full.
struct Piece {
    contents: Arc<Contents>,
    index: usize,
}

impl HugePages {
    /// Creates the counters of a disk of `size` bytes.
    pub(super) fn new(size: usize) -> Self {
        Self { written: (0..size / HUGE_PAGE).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Counts a write. Calls `full` for each piece that has been written often enough to be full.
    #[inline]
    fn count(&self, offset: usize, len: usize, mut full: impl FnMut(usize)) {
        for index in offset / HUGE_PAGE..=(offset + len.saturating_sub(1)) / HUGE_PAGE {
            let Some(written) = self.written.get(index) else { break };
            let before = written.load(Ordering::Relaxed);
            if before >= HUGE_PAGE as u32 {
                continue;
            }
            let start = offset.max(index * HUGE_PAGE);
            let end = (offset + len).min((index + 1) * HUGE_PAGE);
            // Two reactors may lose each other's count: the piece is then tried later.
            let now = before + (end - start) as u32;
            written.store(now, Ordering::Relaxed);
            if now >= HUGE_PAGE as u32 {
                full(index);
            }
        }
    }

    /// Counts anew in a range that was discarded.
    pub(super) fn discarded(&self, offset: u64, len: u64) {
        let piece = HUGE_PAGE as u64;
        for index in offset / piece..=offset.saturating_add(len) / piece {
            let Some(written) = self.written.get(index as usize) else { break };
            written.store(0, Ordering::Relaxed);
        }
    }

    fn set(&self, index: usize, bytes: u32) {
        if let Some(written) = self.written.get(index) {
            written.store(bytes, Ordering::Relaxed);
        }
    }

    /// Stops counting for a piece, unless it was written or discarded since [`Self::set`].
    fn settle(&self, index: usize) {
        if let Some(written) = self.written.get(index) {
            let (again, done) = (HUGE_PAGE as u32 - AGAIN, HUGE_PAGE as u32);
            let _ = written.compare_exchange(again, done, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Contents {
    /// Returns whether a piece has no holes.
    fn is_full(&self, index: usize) -> bool {
        let (start, end) = ((index * HUGE_PAGE) as u64, ((index + 1) * HUGE_PAGE) as u64);
        seek(&self.file, SeekFrom::Hole(start)).is_ok_and(|hole| hole >= end)
    }

    /// Collapses a full piece. Returns false if the kernel may succeed later.
    fn collapse(&self, index: usize) -> bool {
        // It fails now and then, such as for a page that another CPU has just written.
        (0..ATTEMPTS).any(|_| {
            let outcome = self.mapping.collapse(index * HUGE_PAGE, HUGE_PAGE);
            // A kernel that cannot do it never will.
            matches!(outcome, Ok(()) | Err(MemoryError::Os { source: Errno::INVAL, .. }))
        })
    }

    /// Counts a write, and has pieces collapsed that may be full now.
    #[inline]
    pub(super) fn wrote(self: &Arc<Self>, offset: usize, len: usize) {
        let piece = |index| Piece { contents: Arc::clone(self), index };
        self.huge_pages.count(offset, len, |index| collapse_later(piece(index)));
    }
}

#[cold]
fn collapse_later(piece: Piece) {
    static COLLAPSER: OnceLock<Option<SyncSender<Piece>>> = OnceLock::new();
    let collapser = COLLAPSER.get_or_init(|| {
        let (sender, receiver) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new().name("huge-pages".into());
        // Without the thread, pages stay small.
        thread.spawn(move || run(&receiver)).ok().map(|_| sender)
    });
    let Some(collapser) = collapser else { return };
    if let Err(error) = collapser.try_send(piece) {
        let (TrySendError::Full(piece) | TrySendError::Disconnected(piece)) = error;
        piece.contents.huge_pages.set(piece.index, HUGE_PAGE as u32 - AGAIN);
    }
}

fn run(pieces: &Receiver<Piece>) {
    for Piece { contents, index } in pieces {
        let huge_pages = &contents.huge_pages;
        // Before the check, so that writes after it count.
        huge_pages.set(index, HUGE_PAGE as u32 - AGAIN);
        if contents.is_full(index) && contents.collapse(index) {
            huge_pages.settle(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::Mapping;
    use testkit::process::eventually;

    const PIECES: usize = 4;

    fn contents() -> Arc<Contents> {
        let mapping = Mapping::memfd("ringway-huge", (PIECES * HUGE_PAGE) as u64).unwrap();
        let file = mapping.fd().unwrap().try_clone_to_owned().unwrap();
        Contents::new(Arc::new(file), mapping)
    }

    /// Writes pages of a piece as a channel does.
    fn write(contents: &Arc<Contents>, index: usize, pages: std::ops::Range<usize>) {
        for page in pages {
            let offset = index * HUGE_PAGE + page * 4096;
            assert_eq!(rustix::io::pwrite(&contents.file, &[7; 4096], offset as u64), Ok(4096));
            contents.wrote(offset, 4096);
        }
    }

    fn allocated(contents: &Contents) -> u64 {
        rustix::fs::fstat(&contents.file).unwrap().st_blocks as u64 * 512
    }

    /// Returns the bytes of mappings of memory disks in this process that are huge pages.
    fn huge_bytes() -> usize {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = text.lines();
        let mut sum = 0;
        while let Some(line) = lines.next() {
            if line.contains("ringway-huge") {
                let huge = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
                sum += huge.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
            }
        }
        sum
    }

    /// Returns whether the kernel has collapsed a full piece. An older kernel may refuse it.
    fn can_collapse(contents: &Contents, index: usize) -> bool {
        let outcome = contents.mapping.collapse(index * HUGE_PAGE, HUGE_PAGE);
        !matches!(outcome, Err(MemoryError::Os { source: Errno::INVAL, .. }))
    }

    /// One test, because the values are of the whole process.
    #[test]
    fn full_pieces_become_huge_pages_and_a_piece_with_a_hole_does_not_grow() {
        let contents = contents();
        let pages = HUGE_PAGE / 4096;
        write(&contents, 3, 0..pages);
        if !can_collapse(&contents, 3) {
            return println!("this kernel collapses no pages of a memfd; pages stay small");
        }
        // The kernel may fail at a piece at first, and the next writes have it tried again.
        eventually("two are huge", || {
            // The last page of piece 1 stays a hole, however often the others are written.
            write(&contents, 1, 0..pages - 1);
            write(&contents, 0, 0..pages);
            write(&contents, 3, 0..pages);
            huge_bytes() == 2 * HUGE_PAGE
        });
        assert_eq!(allocated(&contents), (3 * HUGE_PAGE - 4096) as u64);
        eventually("three are huge", || {
            write(&contents, 1, 0..pages);
            huge_bytes() == 3 * HUGE_PAGE
        });
    }

    #[test]
    fn a_discard_has_a_piece_counted_anew() {
        let huge_pages = HugePages::new(2 * HUGE_PAGE);
        let mut full = Vec::new();
        huge_pages.count(HUGE_PAGE - 1, HUGE_PAGE, |index| full.push(index));
        huge_pages.count(HUGE_PAGE, HUGE_PAGE - 1, |index| full.push(index));
        huge_pages.count(HUGE_PAGE, 1, |index| full.push(index));
        assert_eq!(full, [1]);
        huge_pages.settle(1);
        huge_pages.discarded(HUGE_PAGE as u64, 4096);
        huge_pages.count(HUGE_PAGE, HUGE_PAGE, |index| full.push(index));
        assert_eq!(full, [1, 1]);
    }
}
