//! Tests of state files under faults and damage.

mod damage;
mod disk;
mod faults;

use super::super::{Batch, Contents, Key, Store as _};
use super::RedbStore;

/// Number of rows. Each batch changes some of them.
const ROWS: u64 = 40;

/// Returns batch `number`, counted from 1: it creates rows, changes earlier ones, and deletes one.
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

/// Returns the content after the first `number` batches.
fn after(number: u64) -> Contents {
    let mut memory = super::super::MemoryStore::default();
    (1..=number).for_each(|number| memory.commit(&batch(number)).unwrap());
    memory.load().unwrap()
}

/// Stores the batches up to `number`.
fn fill(store: &mut RedbStore, number: u64) {
    (1..=number).for_each(|number| store.commit(&batch(number)).unwrap());
    assert_eq!(store.load().unwrap(), after(number));
}
