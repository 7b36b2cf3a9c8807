//! Tests of the journal.

use super::*;
use crate::map::{Base, Place};

const SIZE: JournalSize = JournalSize { entries: 4, rings: 2, records: 2 };

fn cells() -> Cells {
    let cells: Vec<_> = (0..SIZE.cells().unwrap()).map(|_| AtomicU64::new(0)).collect();
    Arc::new(cells)
}

fn open(cells: &Cells) -> JournalOwner {
    JournalOwner::new(Journal::open(Arc::clone(cells), SIZE).unwrap())
}

fn data(units: u64, mask: u16) -> Word {
    Word::data(Place::new(units).unwrap(), mask, Base::Zero)
}

#[test]
fn entries_outlive_their_owner() {
    let cells = cells();
    let mut owner = open(&cells);
    owner.put(7, Word::ZERO, 0).unwrap();
    let (id, number) = owner.put(7, Word::busy(data(3, 0)), 1).unwrap();
    owner.put(9, data(5, 1), 0).unwrap();
    owner.journal().commit(id, data(3, 2));
    let mut owner = open(&cells);
    let entry = owner.entry(7).unwrap().1;
    assert_eq!(entry, Entry { number, granule: 7, word: data(3, 2), zero_number: 1 });
    assert_eq!(owner.entries().count(), 2);
    owner.remove(7);
    assert_eq!(open(&cells).entries().count(), 1);
    // Numbers go on: a record that is younger has a higher one.
    assert!(open(&cells).put(1, Word::ZERO, 0).unwrap().1 >= 3);
}

#[test]
fn of_two_entries_of_a_granule_the_younger_holds() {
    let cells = cells();
    let mut owner = open(&cells);
    let (older, _) = owner.put(7, data(1, 1), 0).unwrap();
    let (_, number) = owner.put(7, Word::ZERO, 0).unwrap();
    // The process died before the older one was removed.
    owner.journal().entry_cell(older, 0).store(number - 1, Ordering::Release);
    let owner = open(&cells);
    assert_eq!(owner.entry(7).unwrap().1.word, Word::ZERO);
    assert!(owner.has_room(2) && !owner.has_room(3));
    assert_eq!(open(&cells).entries().count(), 1);
}

#[test]
fn a_full_journal_still_replaces() {
    let cells = cells();
    let mut owner = open(&cells);
    for granule in 0..3 {
        assert!(owner.has_room(1));
        owner.put(granule, Word::ZERO, 0).unwrap();
    }
    assert!(!owner.has_room(1));
    owner.put(1, data(4, 0), 0).unwrap();
    owner.put(8, data(4, 0), 0).unwrap();
    assert_eq!(owner.put(1, Word::ZERO, 0), Err(JournalError::Full));
}

#[test]
fn records_count_until_they_are_cancelled_or_dropped() {
    let cells = cells();
    let mut owner = open(&cells);
    let mut ring = owner.journal().ring(1).unwrap();
    assert!(ring.reserve() && ring.reserve() && !ring.reserve());
    let record = |granule, mask| Record { granule, blocks: data(6, mask) };
    let first = ring.append(record(3, 1));
    ring.append(record(3, 2));
    assert!(!ring.reserve());
    ring.cancel(first);
    assert_eq!(owner.records(Some(3)), [record(3, 2)]);
    assert_eq!(owner.records(Some(2)), []);
    let positions = owner.positions();
    assert_eq!(positions, [0, 2]);
    owner.drop_records(&[0, positions[1] - 1]);
    assert!(ring.reserve());
    ring.append(record(4, 4));
    assert_eq!(open(&cells).records(None), [record(3, 2), record(4, 4)]);
}

#[test]
fn a_journal_of_another_format_is_refused() {
    let cells = cells();
    open(&cells);
    let other = JournalSize { entries: 3, ..SIZE };
    assert_eq!(Journal::open(Arc::clone(&cells), other).unwrap_err(), JournalError::Format);
    let larger = JournalSize { entries: 40, ..SIZE };
    assert!(matches!(Journal::open(cells, larger), Err(JournalError::Size { .. })));
    assert!(Journal::open(self::cells(), SIZE).unwrap().ring(2).is_none());
}
