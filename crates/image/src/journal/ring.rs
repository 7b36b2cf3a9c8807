//! A channel's ring of records: blocks that it added to clusters.

use std::sync::atomic::Ordering;

use super::{ENTRY_CELLS, HEADER_CELLS, Journal};
use crate::map::Word;

/// Cells before the records: head and tail.
const RING_HEADER: usize = 2;
const RECORD_CELLS: usize = 2;
/// Lowest bit of a record's second cell: the record counts.
const LIVE: u64 = 1;

/// Returns the cells of a ring, `None` on overflow.
pub(super) fn cells(records: usize) -> Option<usize> {
    records.checked_mul(RECORD_CELLS)?.checked_add(RING_HEADER)
}

/// Blocks of a cluster that a channel has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The granule.
    pub granule: u64,
    /// The cluster, with the written blocks as its mask.
    pub blocks: Word,
}

impl Journal {
    fn ring_cell(&self, ring: usize, at: usize) -> &std::sync::atomic::AtomicU64 {
        let first = HEADER_CELLS + self.size.entries * ENTRY_CELLS;
        let len = cells(self.size.records).unwrap_or_default();
        self.cell(first + ring * len + at)
    }

    fn record_at(&self, position: u64) -> usize {
        RING_HEADER + (position % self.size.records.max(1) as u64) as usize * RECORD_CELLS
    }

    /// Returns the writer of a ring. A ring has one writer.
    pub fn ring(&self, ring: usize) -> Option<RingWriter> {
        if ring >= self.size.rings {
            return None;
        }
        self.cell(super::USED_RINGS).fetch_max(ring as u64 + 1, Ordering::AcqRel);
        Some(RingWriter { journal: self.clone(), ring, reserved: 0 })
    }
}

/// Writer of one ring, for the channel that owns it.
#[derive(Debug)]
pub struct RingWriter {
    journal: Journal,
    ring: usize,
    /// Records that requests in flight will write.
    reserved: u64,
}

impl RingWriter {
    /// Reserves room for one record. Returns false if the ring is full: a fold or a flush round of
    /// the owner makes room.
    #[must_use]
    pub fn reserve(&mut self) -> bool {
        let used = tail(&self.journal, self.ring) - head(&self.journal, self.ring);
        let fits = used + self.reserved < self.journal.size.records as u64;
        self.reserved += u64::from(fits);
        fits
    }

    /// Gives a reservation back.
    pub fn unreserve(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Appends a record, which counts from then on. Uses a reservation. Returns its position.
    pub fn append(&mut self, record: Record) -> u64 {
        self.unreserve();
        let position = tail(&self.journal, self.ring);
        let at = self.journal.record_at(position);
        let cell = |at| self.journal.ring_cell(self.ring, at);
        cell(at).store(record.blocks.bits(), Ordering::Release);
        cell(at + 1).store(record.granule << 1 | LIVE, Ordering::Release);
        cell(1).store(position + 1, Ordering::Release);
        position
    }

    /// Cancels a record: the cluster is not the granule's any more.
    pub fn cancel(&mut self, position: u64) {
        let cell = self.journal.ring_cell(self.ring, self.journal.record_at(position) + 1);
        cell.store(cell.load(Ordering::Acquire) & !LIVE, Ordering::Release);
    }
}

fn head(journal: &Journal, ring: usize) -> u64 {
    journal.ring_cell(ring, 0).load(Ordering::Acquire)
}

/// Returns the position after the last record.
pub(super) fn tail(journal: &Journal, ring: usize) -> u64 {
    journal.ring_cell(ring, 1).load(Ordering::Acquire)
}

/// Returns the records that count.
pub(super) fn records(journal: &Journal, ring: usize) -> Vec<Record> {
    let last = tail(journal, ring);
    // A damaged journal must not make this loop for ever.
    let first = head(journal, ring).max(last.saturating_sub(journal.size.records as u64));
    let read = |position| {
        let at = journal.record_at(position);
        let load = |at| journal.ring_cell(ring, at).load(Ordering::Acquire);
        let (blocks, granule) = (Word::from_bits(load(at)), load(at + 1));
        (granule & LIVE != 0).then_some(Record { granule: granule >> 1, blocks })
    };
    (first..last).filter_map(read).collect()
}

/// Drops the records before `position`.
pub(super) fn drop_to(journal: &Journal, ring: usize, position: u64) {
    journal.ring_cell(ring, 0).fetch_max(position, Ordering::AcqRel);
}
