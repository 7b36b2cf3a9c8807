//! What a file must survive.

mod damage;
mod disk;
mod faults;

use super::super::{Batch, Contents, Key, Store as _};
use super::RedbStore;

/// Rows in all: some are on each batch's way, most are not.
const ROWS: u64 = 40;

/// Batch `number`, counted from 1: it makes rows, changes some of those before it, and drops one.
fn batch(number: u64) -> Batch {
    let mut batch = Batch { generation: number, ceiling: 1000, ..Batch::default() };
    for step in 0..12 {
        let name = format!("{:03}", (number * 7 + step * step) % ROWS);
        batch.put(Key::new("obj/VBD", name), number.to_string().repeat(200).into_bytes());
    }
    batch.delete(Key::new("obj/VBD", format!("{:03}", number % ROWS)));
    batch.put(Key::new("meta", "last"), number.to_string().into_bytes());
    batch
}

/// What is there after the first `number` batches.
fn after(number: u64) -> Contents {
    let mut memory = super::super::MemoryStore::default();
    (1..=number).for_each(|number| memory.commit(&batch(number)).unwrap());
    memory.load().unwrap()
}

/// Stores batches up to `number`.
fn fill(store: &mut RedbStore, number: u64) {
    (1..=number).for_each(|number| store.commit(&batch(number)).unwrap());
    assert_eq!(store.load().unwrap(), after(number));
}
