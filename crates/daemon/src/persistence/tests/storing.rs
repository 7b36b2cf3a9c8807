use std::pin::pin;
use std::task::{Context, Waker};

use proptest::prelude::*;
use toolstack::store::{MemoryStore, RedbStore, Store};
use xenapi::Value;
use xenapi::table::{session, task, vm};

use super::{Held, NOW, generation, kept, machine, name, numbered, open, update_allowed, wait};
use crate::db::tests::random::{all, check, of, since, what, write, writes};
use crate::db::{Db, Ref};
use crate::persistence::Persistence;

#[test]
fn references_and_generations_survive() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let (db, persistence) = open(RedbStore::open(&path).unwrap());
    let (one, made) = machine(&db, "one");
    wait(persistence.wait_generation(made)).unwrap();
    wait(
        persistence.change(|tx| tx.set(&one, vm::Field::HVM_shadow_multiplier, Value::Float(1.5))),
    )
    .unwrap();
    let busy = || Some(Value::text("start"));
    db.write_observed(|tx| tx.set_key(&one, vm::Field::current_operations, "task", busy()))
        .unwrap();
    persistence.close().unwrap();
    let (before, last) = (db.read(kept), generation(&db));
    drop((db, persistence));
    let (db, persistence) = open(RedbStore::open(&path).unwrap());
    assert_eq!((db.read(kept), generation(&db)), (before, last));
    db.read(|view| {
        assert_eq!(since(view, last).len(), 0, "a clean end is told to nobody");
        let busy = view.get(&one, vm::Field::current_operations).unwrap();
        assert_eq!(busy, &Value::Map(Default::default()));
        let allowed = view.get(&one, vm::Field::allowed_operations).unwrap();
        assert_ne!(allowed, &Value::Set(Vec::new()), "it follows");
    });
    let (two, _) = machine(&db, "two");
    assert_eq!(generation(&db), last + 1);
    persistence.close().unwrap();
    drop((db, persistence));
    let (db, _durable) = open(RedbStore::open(&path).unwrap());
    let order =
        db.read(|view| view.all(of("VM")).map(|vm| vm.reference().clone()).collect::<Vec<_>>());
    assert_eq!(order, [one, two]);
}

/// Returns the changes since a generation, by kind.
fn changes_since(db: &Db, generation: u64) -> Vec<(&'static str, Ref)> {
    db.read(|view| {
        let changes = since(view, generation);
        changes.iter().map(|change| (what(change), change.reference().clone())).collect()
    })
}

#[test]
fn after_an_unclean_end_everything_is_told_again() {
    let store = MemoryStore::default();
    let (db, persistence) = open(store.clone());
    let (vm, made) = machine(&db, "vm");
    wait(persistence.wait_generation(made)).unwrap();
    // A change is published that was never stored.
    let busy = || Some(Value::text("start"));
    db.write_observed(|tx| tx.set_key(&vm, vm::Field::current_operations, "task", busy())).unwrap();
    let published_until = generation(&db);
    drop((db, persistence));
    let (db, persistence) = open(store.clone());
    assert!(generation(&db) > published_until);
    assert_eq!(changes_since(&db, published_until), [("changed", vm.clone())]);
    assert_eq!(changes_since(&db, 0), [("made", vm.clone())]);
    persistence.close().unwrap();
    drop((db, persistence));
    let (db, persistence) = open(store);
    assert_eq!(changes_since(&db, published_until), [("changed", vm)], "also after the next end");
    assert_eq!(changes_since(&db, generation(&db)), []);
    drop((db, persistence));
}

#[test]
fn what_is_made_is_told_when_it_is_stored() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0), "the reservation");
    let before = generation(&db);
    let (vm, made) = machine(&db, "vm");
    assert_eq!(comes.recv(), Ok(1));
    assert_eq!(name(&db, &vm), Value::text("vm"), "it can be used at once");
    let vms = || db.read(|view| (view.count(of("VM")), view.count_published(of("VM"))));
    assert_eq!((changes_since(&db, before), vms()), (Vec::new(), (1, 0)));
    // The object changes after its creation, and another object is observed.
    let other = db
        .write_observed(|tx| {
            tx.set(&vm, vm::Field::name_label, Value::text("other"))?;
            tx.create(of("VM"), Vec::new())
        })
        .unwrap();
    assert_eq!(changes_since(&db, before), [], "in order");
    // A query by object publishes no earlier, for few or many objects.
    let named = || {
        let one = [vm.clone()].into();
        let both = [vm.clone(), other.clone()].into();
        [one, both].map(|some| db.read(|view| view.since_among(before, of("VM"), &some).count()))
    };
    assert_eq!(named(), [0, 0]);
    let mut changed = db.changed();
    goes.send(()).unwrap();
    wait(persistence.wait_generation(made)).unwrap();
    wait(changed.changed()).unwrap();
    assert_eq!(named(), [1, 2]);
    assert_eq!(changes_since(&db, before), [("made", vm), ("made", other)]);
    assert_eq!(vms(), (2, 2));
    drop(goes);
    persistence.close().unwrap();
}

#[test]
fn what_comes_meanwhile_is_one_batch() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0));
    let (_, first) = machine(&db, "first");
    assert_eq!(comes.recv(), Ok(1));
    let more: Vec<_> = (0..100).map(|number| machine(&db, &number.to_string()).1).collect();
    goes.send(()).unwrap();
    wait(persistence.wait_generation(first)).unwrap();
    assert_eq!(comes.recv(), Ok(100));
    goes.send(()).unwrap();
    more.into_iter().for_each(|generation| wait(persistence.wait_generation(generation)).unwrap());
    drop(goes);
    persistence.close().unwrap();
}

#[test]
fn what_is_true_of_the_moment_is_neither_stored_nor_waited_for() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0));
    let task = db.write_observed(|tx| tx.create(of("task"), Vec::new())).unwrap();
    assert_eq!(comes.recv(), Ok(1));
    let generation = db
        .change(|tx| {
            tx.set(&task, task::Field::progress, Value::Float(0.5))?;
            let user = vec![(session::Field::auth_user_name.into(), Value::text("root"))];
            tx.create(of("session"), user)?;
            Ok(tx.generation())
        })
        .unwrap();
    wait(persistence.wait_generation(generation)).unwrap();
    goes.send(()).unwrap();
    drop(goes);
    persistence.close().unwrap();
    assert_eq!(comes.recv(), Ok(1), "the clean end tells when the task was changed");
    assert!(comes.recv().is_err());
}

#[test]
fn generations_are_reserved_before_they_are_told() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    let mut memory = store.store.clone();
    goes.send(()).unwrap();
    let (db, persistence) =
        Persistence::open_reserving(100, Box::new(store), (numbered, update_allowed), NOW).unwrap();
    assert_eq!(comes.recv(), Ok(0));
    let session = db.write_observed(|tx| tx.create(of("session"), Vec::new())).unwrap();
    let publish = |times| {
        for _ in 0..times {
            db.write_observed(|tx| tx.touch(of("session"), &session)).unwrap();
        }
        generation(&db)
    };
    assert_eq!(publish(49), 50);
    assert!(comes.try_recv().is_err(), "half of them are not used");
    assert_eq!(publish(1), 51);
    assert_eq!(comes.recv(), Ok(0), "nothing but the reservation");
    goes.send(()).unwrap();
    drop(goes);
    drop(persistence);
    let contents = memory.load().unwrap();
    assert_eq!((contents.generation, contents.ceiling, contents.clean), (51, 151, false));
    let (db, _durable) = open(memory);
    assert_eq!(generation(&db), 152);
}

#[test]
fn nothing_is_stored_after_the_end() {
    let store = MemoryStore::default();
    let (db, persistence) = open(store.clone());
    persistence.close().unwrap();
    persistence.close().unwrap();
    let (_, generation) = machine(&db, "late");
    let error = wait(persistence.wait_generation(generation)).unwrap_err();
    assert_eq!(error.code, "INTERNAL_ERROR");
    assert!(store.clone().load().unwrap().rows.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Makes changes of both kinds, some of which find no space, then a clean or abrupt stop.
    #[test]
    fn what_is_stored_is_what_is_there_after_a_restart(
        changes in prop::collection::vec(
            (prop::collection::vec(writes(), 1..5), any::<bool>(), 0u8..4),
            1..12,
        ),
        clean: bool,
    ) {
        let store = MemoryStore::default();
        let (db, persistence) = open(store.clone());
        for (all_of_it, asked, room) in changes {
            let make = |tx: &mut crate::db::Tx<'_>| {
                all_of_it.iter().for_each(|one| write(tx, one));
                Ok(())
            };
            if !asked {
                db.write_observed(make).unwrap();
                continue;
            }
            if room == 0 {
                // Persist everything else first, so that only this change finds no space.
                wait(persistence.change(|tx| tx.create(of("network"), Vec::new()))).unwrap();
                let before = db.read(all);
                store.set_room(Some(0));
                if wait(persistence.change(make)).is_err() {
                    db.read(check);
                    prop_assert_eq!(sorted(db.read(all)), sorted(before));
                }
                store.set_room(None);
            } else {
                wait(persistence.change(make)).unwrap();
            }
        }
        db.read(check);
        // Its batch follows all observed changes.
        wait(persistence.change(|tx| tx.create(of("network"), Vec::new()))).unwrap();
        if clean {
            persistence.close().unwrap();
        }
        let before = db.read(kept);
        drop((db, persistence));
        let (db, _durable) = open(store);
        db.read(check);
        let after = db.read(kept);
        prop_assert!(before.keys().eq(after.keys()));
        for (reference, (made, changed, record)) in &before {
            prop_assert_eq!((made, record), (&after[reference].0, &after[reference].2));
            let again = after[reference].1;
            prop_assert!((*changed == again) == clean && *changed <= again);
        }
    }
}

/// Sorts set members, because a rollback may move a member to the end.
fn sorted(mut all: std::collections::BTreeMap<Ref, Value>) -> Vec<(Ref, Value)> {
    for record in all.values_mut() {
        let Value::Map(members) = record else { continue };
        for member in members.values_mut() {
            if let Value::Set(members) = member {
                members.sort_by_key(|one| format!("{one:?}"));
            }
        }
    }
    all.into_iter().collect()
}

#[test]
fn what_was_noted_is_stored_before_anybody_is_told() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    let memory = store.store.clone();
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0));
    let vm = db.write_observed(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    assert_eq!(comes.recv(), Ok(1));
    let mut attempt = pin!(persistence.wait_attempt());
    assert!(attempt.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    goes.send(()).unwrap();
    wait(attempt).unwrap();
    // Loads the state as a crash leaves it.
    let (after, _durable) = open(memory);
    assert!(after.read(|view| view.get(&vm, vm::Field::power_state).is_ok()));
    // Volatile fields are not waited for.
    db.write_observed(|tx| tx.set(&vm, vm::Field::allowed_operations, Value::Set(Vec::new())))
        .unwrap();
    wait(persistence.wait_attempt()).unwrap();
}
