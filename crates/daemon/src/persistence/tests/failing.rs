use toolstack::store::{Batch, MemoryStore, Store, VALUE_BYTES_MAX};
use xenapi::Value;
use xenapi::table::{vbd, vdi, vm};

use super::{Held, generation, machine, name, open, wait};
use crate::db::tests::random::{all, check, disk, of, since};
use crate::db::{Change, Db, Ref};
use crate::persistence::Persistence;

#[test]
fn what_was_asked_for_is_undone_and_what_was_noted_stays() {
    let store = MemoryStore::default();
    let (db, persistence) = open(store.clone());
    let (vm, made) = machine(&db, "vm");
    wait(persistence.wait_generation(made)).unwrap();
    let before = generation(&db);
    store.set_room(Some(0));
    db.write_observed(|tx| tx.set(&vm, vm::Field::power_state, Value::text("Running"))).unwrap();
    let set = |text: &'static str| {
        let vm = vm.clone();
        persistence.change(move |tx| {
            tx.create(of("VM"), Vec::new())?;
            tx.set(&vm, vm::Field::name_label, Value::text(text))
        })
    };
    let error = wait(set("other")).unwrap_err();
    assert_eq!(error.details(), ["OUT_OF_SPACE", "memory"]);
    let power = || db.read(|view| view.get(&vm, vm::Field::power_state).unwrap().clone());
    assert_eq!((name(&db, &vm), power()), (Value::text("vm"), Value::text("Running")));
    db.read(|view| {
        assert_eq!(view.count(of("VM")), 1);
        let changes = since(view, before);
        assert!(
            matches!(changes.as_slice(), [Change::Changed(object)] if *object.reference() == vm)
        );
    });
    store.set_room(None);
    wait(set("third")).unwrap();
    drop((db.clone(), persistence));
    let (db, _durable) = open(store);
    let power = db.read(|view| view.get(&vm, vm::Field::power_state).unwrap().clone());
    assert_eq!((name(&db, &vm), power), (Value::text("third"), Value::text("Running")));
    assert_eq!(db.read(|view| view.count(of("VM"))), 2);
}

#[test]
fn what_has_changed_since_is_left_alone() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    let memory = store.store.clone();
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0));
    let (vm, one, two, slot) = db
        .write_observed(|tx| {
            let vm = tx.create(of("VM"), Vec::new())?;
            let (one, two) = (tx.create(of("VDI"), Vec::new())?, tx.create(of("VDI"), Vec::new())?);
            let slot = disk(tx, &vm, &one);
            Ok((vm, one, two, slot))
        })
        .unwrap();
    goes.send(()).unwrap();
    assert_eq!(comes.recv(), Ok(4));
    // Hold this batch as well, so that both changes are in the next one.
    db.write_observed(|tx| tx.set(&vm, vm::Field::name_label, Value::text("held"))).unwrap();
    assert_eq!(comes.recv(), Ok(1));
    let asked = db
        .change(|tx| {
            tx.set(&slot, vbd::Field::VDI, two.value())?;
            tx.set(&slot, vbd::Field::bootable, Value::Bool(true))?;
            tx.set(&vm, vm::Field::name_label, Value::text("asked"))?;
            tx.destroy(of("VDI"), &one)?;
            Ok(tx.generation())
        })
        .unwrap();
    db.write_observed(|tx| tx.set(&vm, vm::Field::name_label, Value::text("noted"))).unwrap();
    goes.send(()).unwrap();
    assert_eq!(comes.recv(), Ok(4));
    memory.set_room(Some(0));
    goes.send(()).unwrap();
    let error = wait(persistence.wait_generation(asked)).unwrap_err();
    assert_eq!(error.code, "OUT_OF_SPACE");
    db.read(|view| {
        check(view);
        assert_eq!(view.get(&vm, vm::Field::name_label), Ok(&Value::text("noted")));
        assert_eq!(view.get(&slot, vbd::Field::bootable), Ok(&Value::Bool(false)));
        assert_eq!(view.get(&slot, vbd::Field::VDI), Ok(&one.value()));
        assert_eq!(view.get(&one, vdi::Field::VBDs), Ok(&Value::Set(vec![slot.value()])));
        let made = view.object(of("VDI"), &one).unwrap().made();
        assert_eq!(made, view.generation(), "who was told that it went is told that it is there");
        assert!(!since(view, asked - 1).iter().any(|change| matches!(change, Change::Gone { .. })));
    });
    memory.set_room(None);
    drop(goes);
    let before = db.read(all);
    persistence.close().unwrap();
    drop((db, persistence));
    let (db, _durable) = open(memory);
    assert!(db.read(all).keys().eq(before.keys()));
    assert_eq!(name(&db, &vm), Value::text("noted"));
}

#[test]
fn too_much_that_waits_is_refused() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0));
    let change = || db.change(|tx| tx.create(of("network"), Vec::new()));
    let made = (0..).take_while(|_| change().is_ok()).count();
    assert_eq!(made, 4_096);
    assert_eq!(change().unwrap_err().code, "TOO_MANY_PENDING_TASKS");
    db.write_observed(|tx| tx.create(of("network"), Vec::new())).unwrap();
    drop(goes);
    persistence.close().unwrap();
}

/// Creates a database whose next batch fails for lack of space. A batch is under way, and each
/// batch waits for a permit.
fn about_to_fail() -> (MemoryStore, Db, Persistence, std::sync::mpsc::Sender<()>) {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    let memory = store.store.clone();
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0));
    db.write_observed(|tx| tx.create(of("network"), Vec::new())).unwrap();
    assert_eq!(comes.recv(), Ok(1));
    memory.set_room(Some(0));
    (memory, db, persistence, goes)
}

#[test]
fn what_is_used_since_stays_and_all_that_was_made_with_it() {
    let (memory, db, persistence, goes) = about_to_fail();
    let ((vm, disk_of_it), made) = db
        .change(|tx| {
            let (vm, vdi) = (tx.create(of("VM"), Vec::new())?, tx.create(of("VDI"), Vec::new())?);
            Ok(((vm.clone(), disk(tx, &vm, &vdi)), tx.generation()))
        })
        .unwrap();
    let (unused, unused_made) = machine(&db, "unused");
    // A later requested change uses the object. It is rolled back as well, so the object stays
    // unused.
    let (slot, late) = db
        .change(|tx| {
            let vdi = tx.create(of("VDI"), Vec::new())?;
            tx.set(&unused, vm::Field::name_label, Value::text("other"))?;
            Ok((disk(tx, &unused, &vdi), tx.generation()))
        })
        .unwrap();
    db.write_observed(|tx| tx.set(&vm, vm::Field::power_state, Value::text("Running"))).unwrap();
    goes.send(()).unwrap();
    for taken_back in [unused_made, late] {
        assert_eq!(wait(persistence.wait_generation(taken_back)).unwrap_err().code, "OUT_OF_SPACE");
    }
    wait(persistence.wait_generation(made)).unwrap();
    db.read(|view| {
        check(view);
        assert!(view.object(of("VBD"), &disk_of_it).is_ok() && view.object(of("VM"), &vm).is_ok());
        assert!(view.object(of("VBD"), &slot).is_err() && view.object(of("VM"), &unused).is_err());
        let is_published = since(view, made - 1)
            .iter()
            .any(|change| matches!(change, Change::Made(object) if *object.reference() == vm));
        assert!(is_published, "nobody waits for it to be stored any more");
    });
    memory.set_room(None);
    drop(goes);
    persistence.close().unwrap();
    drop((db, persistence));
    let (db, _durable) = open(memory);
    db.read(|view| {
        assert_eq!(view.get(&vm, vm::Field::power_state), Ok(&Value::text("Running")));
        assert_eq!((view.count(of("VM")), view.count(of("VBD"))), (1, 1));
    });
}

#[test]
fn a_uuid_that_another_has_by_now_is_left_to_it() {
    let (store, comes, goes) = Held::over(MemoryStore::default());
    let memory = store.store.clone();
    goes.send(()).unwrap();
    let (db, persistence) = open(store);
    assert_eq!(comes.recv(), Ok(0));
    let former = db.write_observed(|tx| tx.create(of("VDI"), Vec::new())).unwrap();
    assert_eq!(comes.recv(), Ok(1));
    let uuid = db.read(|view| view.get(&former, vdi::Field::uuid).unwrap().clone());
    let gone = db
        .change(|tx| {
            tx.destroy(of("VDI"), &former)?;
            Ok(tx.generation())
        })
        .unwrap();
    // A scan would create such a record.
    let found = vec![(vdi::Field::uuid.into(), uuid)];
    let found = db.write_observed(|tx| tx.create(of("VDI"), found)).unwrap();
    // The first batch succeeds, the second one fails.
    goes.send(()).unwrap();
    assert_eq!(comes.recv(), Ok(1));
    memory.set_room(Some(0));
    goes.send(()).unwrap();
    assert!(wait(persistence.wait_generation(gone)).is_err());
    db.read(|view| {
        check(view);
        let all: Vec<&Ref> = view.all(of("VDI")).map(|one| one.reference()).collect();
        assert_eq!(all, [&found]);
    });
    memory.set_room(None);
    drop(goes);
    persistence.close().unwrap();
    drop((db, persistence));
    let (db, _durable) = open(memory);
    assert!(db.read(|view| view.object(of("VDI"), &found).is_ok()));
}

/// A later version wrote a row so large that no field fits in addition.
#[test]
fn a_row_that_no_store_takes_keeps_no_other_from_being_stored() {
    let before = MemoryStore::default();
    let (db, persistence) = open(before.clone());
    let (vm, made) = machine(&db, "vm");
    wait(persistence.wait_generation(made)).unwrap();
    persistence.close().unwrap();
    drop((db, persistence));
    let contents = before.clone().load().unwrap();
    let (key, text) = contents.rows.first().unwrap();
    let text = String::from_utf8(text.clone()).unwrap();
    let much = "x".repeat(VALUE_BYTES_MAX - text.len() - 100);
    let text = text.replace("\"fields\":{", &format!("\"fields\":{{\"later\":\"{much}\","));
    let mut batch = Batch { generation: 99, ceiling: 1 << 60, clean: true, ..Batch::default() };
    batch.put(key.clone(), text.into_bytes());
    let mut store = before.clone();
    store.commit(&batch).unwrap();

    let (db, persistence) = open(store);
    let named = |name: String| {
        db.write_observed(|tx| tx.set(&vm, vm::Field::name_label, Value::Str(name))).unwrap();
    };
    named("n".repeat(200));
    // A change requested at the same moment may be rolled back with it.
    let create = || wait(persistence.change(|tx| tx.create(of("network"), Vec::new()))).is_ok();
    assert!((0..3).any(|_| create()));
    let long = "n".repeat(201);
    let asked = persistence.change(|tx| tx.set(&vm, vm::Field::name_label, Value::text(long)));
    assert_eq!(wait(asked).unwrap_err().code, "INTERNAL_ERROR");
    assert!((0..3).any(|_| create()));
    persistence.close().unwrap();
    assert!(!before.clone().load().unwrap().clean, "the row is older than what was told");
    drop(persistence);
    drop(db);

    let (db, persistence) = open(before.clone());
    assert_eq!(name(&db, &vm), Value::text("vm"));
    wait(persistence.change(|tx| tx.set(&vm, vm::Field::name_label, Value::text("v")))).unwrap();
    persistence.close().unwrap();
    assert!(before.clone().load().unwrap().clean);
}

#[test]
fn a_full_disk_keeps_nobody_who_tells_what_has_become_of_the_world() {
    let store = MemoryStore::default();
    let (db, persistence) = open(store.clone());
    let (vm, made) = machine(&db, "vm");
    wait(persistence.wait_generation(made)).unwrap();
    store.set_room(Some(0));
    db.write_observed(|tx| tx.set(&vm, vm::Field::power_state, Value::text("Running"))).unwrap();
    wait(persistence.wait_attempt()).unwrap();
    wait(persistence.wait_attempt()).unwrap();
    let power = db.read(|view| view.get(&vm, vm::Field::power_state).unwrap().clone());
    assert_eq!(power, Value::text("Running"));
}
