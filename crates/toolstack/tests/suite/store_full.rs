//! Store on a file system that is really full.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::path::Path;

use testkit::in_namespace::in_little_room;
use toolstack::store::{Batch, Key, MemoryStore, RedbStore, Store, StoreError};

/// Size of the file system, in MiB.
const ROOM_MIB: u32 = 6;
/// Size of a file that is removed to free space, in bytes.
const FILLER_BYTES: usize = 3 << 20;
/// More batches than fit.
const BATCHES_MAX: u64 = 200;

fn batch(number: u64) -> Batch {
    let mut batch = Batch { generation: number, ceiling: number, ..Batch::default() };
    for part in 0..3 {
        batch.put(Key::new("obj/VM", format!("{number} {part}")), vec![number as u8; 20_000]);
    }
    batch
}

/// Runs the test with this name in its own small file system.
fn in_room(name: &str, inside: fn(&Path)) {
    print!("{}", in_little_room(name, ROOM_MIB, inside).unwrap());
}

#[test]
fn a_full_file_system_costs_a_batch_and_no_restart() {
    in_room(
        concat!(module_path!(), "::a_full_file_system_costs_a_batch_and_no_restart"),
        full_twice,
    );
}

fn full_twice(dir: &Path) {
    let (filler, state) = (dir.join("filler"), dir.join("state.redb"));
    std::fs::write(&filler, vec![1; FILLER_BYTES]).unwrap();
    let (mut store, mut expected) = (RedbStore::open(&state).unwrap(), MemoryStore::default());
    let mut fill = |store: &mut RedbStore| {
        let first = store.load().unwrap().generation + 1;
        let full = (first..=BATCHES_MAX).find_map(|number| match store.commit(&batch(number)) {
            Ok(()) => {
                expected.commit(&batch(number)).unwrap();
                None
            }
            Err(error) => Some((number, error)),
        });
        let (number, error) = full.expect("the file system is small");
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
        assert!(error.to_string().contains(state.to_str().unwrap()), "{error}");
        assert!(store.load().unwrap() == expected.load().unwrap(), "batch {number} is there");
        number
    };
    let first = fill(&mut store);
    assert!(first > 1, "nothing fits");
    std::fs::remove_file(&filler).unwrap();
    let second = fill(&mut store);
    println!("full at batch {first}, and with more room at batch {second}");
    assert!(second > first, "what was freed is of use without a restart");
    drop(store);
    assert!(RedbStore::open(&state).unwrap().load().unwrap() == expected.load().unwrap());
}

#[test]
fn on_a_full_file_system_what_makes_room_is_stored() {
    in_room(concat!(module_path!(), "::on_a_full_file_system_what_makes_room_is_stored"), spare);
}

fn spare(dir: &Path) {
    let (filler, state) = (dir.join("filler"), dir.join("state.redb"));
    let reserve = dir.join("state.redb.reserve");
    let kept = || std::fs::metadata(&reserve).map_or(0, |found| found.len());
    let (mut store, mut expected) = (RedbStore::open(&state).unwrap(), MemoryStore::default());
    assert_eq!(kept(), 1 << 20);
    let mut number = 0;
    let mut commit = |store: &mut RedbStore, change: &dyn Fn(&mut Batch)| {
        let mut batch = Batch { generation: number + 1, ceiling: number + 1, ..Batch::default() };
        change(&mut batch);
        store.commit(&batch)?;
        number += 1;
        expected.commit(&batch).unwrap();
        Ok::<_, StoreError>(expected.load().unwrap())
    };
    let large = |batch: &mut Batch, name: &str| {
        batch.put(Key::new("obj/VM", name), vec![7; 20_000]);
    };
    for name in ["a", "b", "c"] {
        commit(&mut store, &|batch| large(batch, name)).unwrap();
    }
    let more = std::fs::write(&filler, vec![1; 8 << 20]).unwrap_err();
    assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);
    let full = (0..BATCHES_MAX)
        .find_map(|name| commit(&mut store, &|batch| large(batch, &name.to_string())).err());
    assert!(matches!(full, Some(StoreError::Full { .. })), "{full:?}");
    assert_eq!(kept(), 1 << 20, "who only wants more does not get it");
    // The same holds after an unclean close on a full disk.
    drop(store);
    let mut store = RedbStore::open(&state).unwrap();
    let mut there = None;
    for name in ["a", "b", "c"] {
        let went = commit(&mut store, &|batch| {
            batch.spare = true;
            batch.delete(Key::new("obj/VM", name));
            batch.put(Key::new("obj/task", name), vec![1; 500]);
        });
        there = Some(went.unwrap());
    }
    assert_eq!(kept(), 0, "it was needed");
    assert!(store.load().unwrap() == there.unwrap());
    std::fs::remove_file(&filler).unwrap();
    let there = commit(&mut store, &|batch| large(batch, "d")).unwrap();
    assert_eq!(kept(), 1 << 20, "there is room to keep some again");
    drop(store);
    assert!(RedbStore::open(&state).unwrap().load().unwrap() == there);
}
