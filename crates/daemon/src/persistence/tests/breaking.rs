use std::sync::mpsc::{Sender, channel};

use toolstack::store::{Batch, Contents, MemoryStore, Store, StoreError};
use xenapi::Value;
use xenapi::table::vm;

use super::{DEADLINE, machine, open, wait};
use crate::db::tests::random::of;
use crate::persistence::CloseError;

/// A store with a bug: it panics at the second batch.
#[derive(Debug, Default)]
struct Broken {
    store: MemoryStore,
    batches: usize,
}

impl Store for Broken {
    fn load(&mut self) -> Result<Contents, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.batches += 1;
        assert!(self.batches < 2, "a mistake, for a test");
        self.store.commit(batch)
    }
}

#[test]
fn who_stores_no_more_says_so() {
    let broken = Broken::default();
    let memory = broken.store.clone();
    let (db, persistence) = open(broken);
    let (_, generation) = machine(&db, "vm");
    assert_eq!(wait(persistence.wait_generation(generation)).unwrap_err().code, "INTERNAL_ERROR");
    wait(persistence.wait_writer_died());
    let ended = persistence.close().unwrap_err();
    assert!(matches!(ended, CloseError::BrokeOff), "{ended}");
    assert!(!memory.clone().load().unwrap().clean, "the next start knows");
}

/// A store that reports whether each batch may use reserved space.
#[derive(Debug)]
struct Asked {
    store: MemoryStore,
    spare: Sender<bool>,
}

impl Store for Asked {
    fn load(&mut self) -> Result<Contents, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let _ = self.spare.send(batch.spare);
        self.store.commit(batch)
    }
}

#[test]
fn what_makes_room_or_has_become_so_may_use_the_room_that_is_kept() {
    let (spare, spare_rx) = channel();
    let (db, persistence) = open(Asked { store: MemoryStore::default(), spare });
    let spare = || spare_rx.recv_timeout(DEADLINE).unwrap();
    assert!(spare(), "a start");
    let vm = wait(persistence.change(|tx| tx.create(of("VM"), Vec::new()))).unwrap();
    assert!(!spare(), "somebody wants more");
    let named = |name: &str| {
        let name = Value::text(name);
        let vm = vm.clone();
        persistence.change(move |tx| tx.set(&vm, vm::Field::name_label, name))
    };
    wait(named("n")).unwrap();
    assert!(!spare(), "somebody wants something else");
    db.write_observed(|tx| tx.set(&vm, vm::Field::power_state, Value::text("Running"))).unwrap();
    assert!(spare(), "it has become so");
    wait(persistence.change(|tx| {
        tx.destroy(of("VM"), &vm)?;
        tx.create(of("VM"), Vec::new())
    }))
    .unwrap();
    assert!(!spare(), "nothing is gained");
    let other = db.write_observed(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    assert!(spare());
    wait(persistence.change(|tx| tx.destroy(of("VM"), &other))).unwrap();
    assert!(spare(), "an end makes room");
    persistence.close().unwrap();
    assert!(spare());
}
