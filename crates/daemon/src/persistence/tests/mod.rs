//! Tests with a store that outlives the database and can be held back or run out of space.

mod breaking;
mod failing;
mod loading;
mod storing;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use toolstack::store::{Batch, Contents, MemoryStore, Store, StoreError};
use xenapi::table::{RecordStorage, vm};
use xenapi::{Date, Value};

use super::Persistence;
use crate::allowed_operations::update_allowed;
use crate::db::tests::random::{numbered, of};
use crate::db::{Db, Ref, View};

const NOW: Date = Date(1_000_000_000);
/// Longer than any test.
const DEADLINE: Duration = Duration::from_secs(300);

fn open(store: impl Store + 'static) -> (Db, Persistence) {
    Persistence::open(Box::new(store), numbered, update_allowed, NOW).unwrap()
}

/// Waits for a future with a deadline.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, future).await.unwrap() })
}

fn generation(db: &Db) -> u64 {
    db.read(|view| view.generation())
}

fn machine(db: &Db, name: &str) -> (Ref, u64) {
    let named = vec![(vm::Field::name_label.into(), Value::text(name))];
    db.change(|tx| Ok((tx.create(of("VM"), named)?, tx.generation()))).unwrap()
}

fn name(db: &Db, vm: &Ref) -> Value {
    db.read(|view| view.get(vm, vm::Field::name_label).unwrap().clone())
}

/// Returns everything that a restart preserves, with generations.
fn kept(view: &View<'_>) -> BTreeMap<Ref, (u64, u64, Value)> {
    let classes = xenapi::table::classes()
        .iter()
        .filter(|class| class.record_storage == RecordStorage::State);
    let objects = classes.flat_map(|class| view.all(class));
    let row = |object: &crate::db::Object| {
        let Value::Map(mut members) = object.record().value().clone() else { panic!("no record") };
        for field in object.class().fields.iter().filter(|field| field.volatile) {
            members.remove(field.name);
        }
        // A restart orders set members by age.
        for member in members.values_mut() {
            if let Value::Set(members) = member {
                members.sort_by_key(|one| format!("{one:?}"));
            }
        }
        (object.made(), object.changed(), Value::Map(members))
    };
    objects.map(|object| (object.reference().clone(), row(object))).collect()
}

/// A store in which each batch waits for a permit.
#[derive(Debug)]
struct Held {
    store: MemoryStore,
    /// Reports the number of rows of each batch.
    rows_tx: Sender<usize>,
    /// Receives permits.
    go: Receiver<()>,
}

/// Receives the number of rows of each batch.
struct Comes(Receiver<usize>);

impl Comes {
    fn recv(&self) -> Result<usize, RecvTimeoutError> {
        self.0.recv_timeout(DEADLINE)
    }

    fn try_recv(&self) -> Result<usize, TryRecvError> {
        self.0.try_recv()
    }
}

impl Held {
    fn over(store: MemoryStore) -> (Self, Comes, Sender<()>) {
        let ((rows_tx, comes), (goes, go)) = (channel(), channel());
        (Self { store, rows_tx, go }, Comes(comes), goes)
    }
}

impl Store for Held {
    fn load(&mut self) -> Result<Contents, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let _ = self.rows_tx.send(batch.changes.len());
        // If the test has ended or waits for this batch, let it through.
        let _ = self.go.recv_timeout(DEADLINE);
        self.store.commit(batch)
    }
}
