//! Failures of every write of a commit, with every fault of the disk.

use super::super::super::{Store as _, StoreError};
use super::disk::{Disk, Fault};
use super::{after, batch, fill};

/// More changes and flushes than one commit makes.
const CHANGES_MAX: usize = 1_000;

/// Fails each change of the third batch in turn, and passes the result to the check. Returns the
/// number of changes.
fn at_every_change(
    fault: Fault,
    check: impl Fn(&Disk, super::RedbStore, Result<(), StoreError>),
) -> usize {
    for k in 0..CHANGES_MAX {
        let disk = Disk::new();
        let mut store = disk.open().unwrap();
        fill(&mut store, 2);
        disk.fail(k, fault);
        let outcome = store.commit(&batch(3));
        let through = outcome.is_ok();
        check(&disk, store, outcome);
        if through {
            return k;
        }
    }
    panic!("a commit that never ends");
}

#[test]
fn a_full_disk_costs_the_batch_and_nothing_else() {
    for fault in [Fault::FullOnce, Fault::Full] {
        let changes = at_every_change(fault, |disk, mut store, outcome| {
            disk.heal();
            let stored = match outcome {
                Ok(()) => 3,
                Err(StoreError::Full { .. }) => 2,
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(store.load().unwrap(), after(stored));
            (stored + 1..6).for_each(|number| store.commit(&batch(number)).unwrap());
            assert_eq!(store.load().unwrap(), after(5));
            drop(store);
            assert_eq!(disk.open().unwrap().load().unwrap(), after(5));
        });
        assert!(changes > 2, "{fault:?}: {changes}");
    }
}

#[test]
fn a_disk_that_stays_full_refuses_each_batch_alike() {
    let disk = Disk::new();
    let mut store = disk.open().unwrap();
    fill(&mut store, 2);
    disk.fail(0, Fault::Full);
    for _ in 0..3 {
        assert!(matches!(store.commit(&batch(3)), Err(StoreError::Full { .. })));
    }
    disk.heal();
    store.commit(&batch(3)).unwrap();
    assert_eq!(store.load().unwrap(), after(3));
}

#[test]
fn after_a_failed_flush_nothing_is_promised_any_more() {
    let unsure = std::cell::Cell::new(0);
    at_every_change(Fault::Flush, |disk, mut store, outcome| {
        match outcome {
            Ok(()) => assert_eq!(store.load().unwrap(), after(3)),
            Err(StoreError::Unsure { .. }) => {
                unsure.set(unsure.get() + 1);
                // The store must fail even though the disk works again.
                disk.heal();
                assert!(matches!(store.load(), Err(StoreError::Unsure { .. })));
                assert!(matches!(store.commit(&batch(4)), Err(StoreError::Unsure { .. })));
            }
            Err(StoreError::Os { .. }) => assert_eq!(store.load().unwrap(), after(2)),
            Err(other) => panic!("{other:?}"),
        }
        drop(store);
        let again = disk.open().unwrap().load().unwrap();
        assert!(again == after(2) || again == after(3));
    });
    assert!(unsure.get() > 0, "the last flush is one");
}

#[test]
fn a_loss_of_power_at_any_point_leaves_a_batch_or_none_of_it() {
    let patterns: [fn(usize) -> bool; 4] =
        [|_| false, |_| true, |number| number % 2 == 0, |number| number % 3 == 1];
    for kept in patterns {
        at_every_change(Fault::Dead, |disk, store, outcome| {
            // Nothing is written after the loss of power.
            disk.fail(0, Fault::Dead);
            drop(store);
            disk.lose_power(kept);
            let mut store = disk.open().unwrap();
            let there = store.load().unwrap();
            let whole = there == after(3) || outcome.is_err() && there == after(2);
            assert!(whole, "{outcome:?} left generation {}", there.generation);
            let number = there.generation + 1;
            store.commit(&batch(number)).unwrap();
            assert_eq!(store.load().unwrap(), after(number));
        });
    }
}
