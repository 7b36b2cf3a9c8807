use std::collections::{BTreeMap, BTreeSet, HashSet};

pub(crate) mod random;

use proptest::prelude::*;
use xenapi::table::{task, vbd, vdi, vm};
use xenapi::{ApiError, NULL_REF, Value};

use super::bounds::{RECORD_BYTES_MAX, SMALL_RECORD_BYTES_MAX};
use super::{Change, Db, Object, Ref, Tx, View};
use random::{all, check, disk, numbered, of, since, what, write, writes};

fn db() -> Db {
    Db::new(7, numbered, |_| Ok(()))
}

fn failed<T>() -> Result<T, ApiError> {
    Err(ApiError::new("TEST", ["it fails"]))
}

#[test]
fn sets_of_references_follow() {
    let db = db();
    let (vm, one, two, vbd) = db
        .change(|tx| {
            let vm = tx.create(of("VM"), Vec::new())?;
            let (one, two) = (tx.create(of("VDI"), Vec::new())?, tx.create(of("VDI"), Vec::new())?);
            let vbd = disk(tx, &vm, &one);
            Ok((vm, one, two, vbd))
        })
        .unwrap();
    let sets = || {
        db.read(|view| {
            let vdis = [&one, &two].map(|vdi| view.get(vdi, vdi::Field::VBDs).unwrap().clone());
            (view.get(&vm, vm::Field::VBDs).unwrap().clone(), vdis)
        })
    };
    let has = Value::Set(vec![vbd.value()]);
    let none = Value::Set(Vec::new());
    assert_eq!(sets(), (has.clone(), [has.clone(), none.clone()]));
    db.change(|tx| tx.set(&vbd, vbd::Field::VDI, two.value())).unwrap();
    assert_eq!(sets(), (has.clone(), [none.clone(), has]));
    db.change(|tx| tx.set(&vbd, vbd::Field::VDI, Value::text(NULL_REF))).unwrap();
    db.change(|tx| tx.destroy(of("VBD"), &vbd)).unwrap();
    assert_eq!(sets(), (none.clone(), [none.clone(), none]));
}

#[test]
fn what_fails_has_never_been() {
    let db = db();
    let vm = db.change(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    let before = db.read(all);
    let write = |tx: &mut Tx<'_>| {
        let vdi = tx.create(of("VDI"), Vec::new()).unwrap();
        disk(tx, &vm, &vdi);
        tx.set(&vm, vm::Field::name_label, Value::text("other")).unwrap();
        tx.destroy(of("VM"), &vm).unwrap();
    };
    let seen = db.changed();
    assert!(
        db.change(|tx| {
            write(tx);
            failed::<()>()
        })
        .is_err()
    );
    assert_eq!(db.read(all), before);
    let panics = std::panic::AssertUnwindSafe(|| {
        db.change(|tx| -> Result<(), ApiError> {
            write(tx);
            panic!("in the middle");
        })
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(db.read(all), before);
    assert_eq!(db.read(|view| view.generation()), 8);
    assert!(!seen.has_changed().unwrap(), "nobody is told of what has not been");
    db.read(|view| assert_eq!(view.by_name(of("VM"), "other").count(), 0));
}

#[test]
fn what_follows_belongs_to_the_change() {
    let follow = |tx: &mut Tx<'_>| {
        let vms: Vec<Ref> =
            tx.touched().filter(|t| t.class() == "VM").map(|t| t.reference().clone()).collect();
        for vm in vms {
            if *tx.view().get(&vm, vm::Field::name_label)? == Value::text("bad") {
                return failed();
            }
            tx.set(&vm, vm::Field::name_description, Value::text("followed"))?;
        }
        Ok(())
    };
    let db = Db::new(0, numbered, follow);
    let vm = db.change(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    let description =
        || db.read(|view| view.get(&vm, vm::Field::name_description).unwrap().clone());
    assert_eq!(description(), Value::text("followed"));
    assert!(db.change(|tx| tx.set(&vm, vm::Field::name_label, Value::text("bad"))).is_err());
    db.read(|view| assert_eq!(view.get(&vm, vm::Field::name_label), Ok(&Value::text(""))));
}

#[test]
fn objects_are_found_by_what_they_are_called() {
    let db = db();
    let name = |text: &str| vec![(vm::Field::name_label.into(), Value::text(text))];
    let (one, two) = db
        .change(|tx| Ok((tx.create(of("VM"), name("a"))?, tx.create(of("VM"), name("a"))?)))
        .unwrap();
    db.read(|view| {
        assert_eq!(view.by_name(of("VM"), "a").collect::<Vec<_>>(), [&one, &two]);
        let Ok(Value::Str(uuid)) = view.get(&one, vm::Field::uuid) else { panic!("no UUID") };
        assert_eq!(view.by_uuid(of("VM"), &uuid.to_uppercase()), Ok(&one));
        let error = view.by_uuid(of("VDI"), uuid).unwrap_err();
        assert_eq!(error.details(), ["UUID_INVALID", "VDI", uuid]);
        let error = view.object(of("VDI"), &one).unwrap_err();
        assert_eq!(error.details(), ["HANDLE_INVALID", "VDI", one.as_str()]);
    });
    db.change(|tx| tx.set(&one, vm::Field::name_label, Value::text("b"))).unwrap();
    db.read(|view| assert_eq!(view.by_name(of("VM"), "a").collect::<Vec<_>>(), [&two]));
}

#[test]
fn a_value_must_fit_its_field() {
    let db = db();
    let vm = db.change(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    let set = |field: vm::Field, value| db.change(|tx| tx.set(&vm, field, value));
    assert_eq!(set(vm::Field::name_label, Value::Int(1)).unwrap_err().code, "INTERNAL_ERROR");
    assert_eq!(set(vm::Field::power_state, Value::text("x")).unwrap_err().code, "INTERNAL_ERROR");
    let other = vec![(task::Field::name_label.into(), Value::text("x"))];
    assert_eq!(db.change(|tx| tx.create(of("VM"), other)).unwrap_err().code, "INTERNAL_ERROR");
    let set = set(vm::Field::VBDs, Value::Set(Vec::new()));
    assert_eq!(set.unwrap_err().code, "INTERNAL_ERROR", "it follows from VBD.VM");
    let given = vec![(vm::Field::VIFs.into(), Value::Set(Vec::new()))];
    assert_eq!(db.change(|tx| tx.create(of("VM"), given)).unwrap_err().code, "INTERNAL_ERROR");
    let uuid = db.read(|view| view.get(&vm, vm::Field::uuid).unwrap().clone());
    let none = vec![(vm::Field::uuid.into(), Value::text("no\nUUID"))];
    assert_eq!(db.change(|tx| tx.create(of("VM"), none)).unwrap_err().code, "INVALID_VALUE");
    let same = vec![(vm::Field::uuid.into(), uuid)];
    let refused = db.change(|tx| tx.create(of("VM"), same)).unwrap_err();
    assert_eq!(refused.code, "DB_UNIQUENESS_CONSTRAINT_VIOLATION");
}

#[test]
fn what_is_asked_for_does_not_outgrow_its_record() {
    let db = db();
    let long = |bytes: usize| Value::Str("x".repeat(bytes));
    let named = |bytes: usize| vec![(vm::Field::name_label.into(), long(bytes))];
    let error = db.change(|tx| tx.create(of("VM"), named(RECORD_BYTES_MAX))).unwrap_err();
    assert_eq!(error.details()[..2], ["VALUE_NOT_SUPPORTED", "name_label"]);
    let half = RECORD_BYTES_MAX / 2;
    let vm = db.change(|tx| tx.create(of("VM"), named(half))).unwrap();
    let set = |key: &str, bytes: usize| {
        db.change(|tx| tx.set_key(&vm, vm::Field::other_config, key, Some(long(bytes))))
    };
    set("one", half / 2).unwrap();
    let error = set("two", half / 2).unwrap_err();
    assert_eq!(error.details()[..2], ["VALUE_NOT_SUPPORTED", "other_config"]);
    // Observed changes have no size limit, and a record may always become smaller.
    let noted = |bytes| db.write_observed(|tx| tx.set(&vm, vm::Field::name_label, long(bytes)));
    noted(2 * RECORD_BYTES_MAX).unwrap();
    let named = |bytes| db.change(|tx| tx.set(&vm, vm::Field::name_label, long(bytes)));
    named(2 * RECORD_BYTES_MAX - 1).unwrap();
    assert!(named(2 * RECORD_BYTES_MAX).is_err());
    assert!(set("two", 1).is_err());
    named(1).unwrap();
    set("two", half / 2).unwrap();
    let task = vec![(task::Field::result.into(), long(SMALL_RECORD_BYTES_MAX))];
    assert!(db.change(|tx| tx.create(of("task"), task.clone())).is_err());
    db.write_observed(|tx| tx.create(of("task"), task.clone())).unwrap();
}

#[test]
fn a_value_that_is_there_already_is_no_change() {
    let db = db();
    let vm = db.change(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    db.change(|tx| tx.set(&vm, vm::Field::name_label, Value::text(""))).unwrap();
    assert_eq!(db.read(|view| view.generation()), 8);
    let record = |view: &View<'_>| view.record(of("VM"), &vm).unwrap();
    let (first, again) = (db.read(record), db.read(record));
    assert!(std::sync::Arc::ptr_eq(&first, &again), "it is made once");
    db.change(|tx| tx.set_key(&vm, vm::Field::other_config, "k", Some(Value::text("v")))).unwrap();
    assert_ne!(db.read(record), first);
    db.change(|tx| tx.set_key(&vm, vm::Field::other_config, "k", None)).unwrap();
    assert_eq!(db.read(record), first);
}

#[test]
fn changes_are_told_once_and_as_they_ended() {
    let db = db();
    let vm = db.change(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    let start = db.read(|view| view.generation());
    let changes_since = |generation| {
        db.read(|view| {
            let changes = since(view, generation);
            let changes =
                changes.iter().map(|change| format!("{} {}", what(change), change.class().name));
            changes.collect::<Vec<_>>()
        })
    };
    assert!(changes_since(start).is_empty());
    for name in ["a", "b"] {
        db.change(|tx| tx.set(&vm, vm::Field::name_label, Value::text(name))).unwrap();
    }
    let vdi = db.change(|tx| tx.create(of("VDI"), Vec::new())).unwrap();
    assert_eq!(changes_since(start), ["changed VM", "made VDI"]);
    assert_eq!(changes_since(0), ["made VM", "made VDI"]);
    db.change(|tx| tx.destroy(of("VDI"), &vdi)).unwrap();
    assert_eq!(
        changes_since(start),
        ["changed VM"],
        "it was not there before and is not there now"
    );
    assert_eq!(changes_since(db.read(|view| view.generation()) - 1), ["gone VDI"]);
    db.change(|tx| tx.destroy(of("VM"), &vm)).unwrap();
    assert_eq!(changes_since(start), ["gone VM"]);
    assert_eq!(changes_since(u64::MAX), [""; 0]);
}

/// A client that queries changes at random times.
#[derive(Default)]
struct Client {
    since: u64,
    knows: BTreeMap<Ref, Value>,
}

impl Client {
    fn asks(&mut self, view: &View<'_>) {
        self.asks_for_some(view);
        for change in since(view, self.since) {
            match change {
                Change::Made(object) => {
                    let value = object.record().value().clone();
                    assert!(self.knows.insert(object.reference().clone(), value).is_none());
                }
                Change::Changed(object) => {
                    let value = object.record().value().clone();
                    assert!(self.knows.insert(object.reference().clone(), value).is_some());
                }
                Change::Gone { reference, .. } => assert!(self.knows.remove(reference).is_some()),
            }
        }
        self.since = view.generation();
        assert_eq!(self.knows, all(view));
    }

    /// A query by object must report the same changes as a query by class.
    fn asks_for_some(&self, view: &View<'_>) {
        for (class, each) in ["VM", "VBD", "VDI", "SR"].iter().zip([2, 3, 2, 1]) {
            let ever = view.all(of(class)).map(Object::reference).chain(self.knows.keys());
            let some: HashSet<Ref> = ever.step_by(each).cloned().collect();
            let has = |change: &Change<'_>| some.contains(change.reference());
            let sorted = |changes: Vec<Change<'_>>| {
                let mut changes: Vec<_> = changes.iter().map(|one| format!("{one:?}")).collect();
                changes.sort();
                changes
            };
            let of_class = view.since(self.since, of(class)).filter(has).collect();
            let of_some = view.since_among(self.since, of(class), &some).collect();
            assert_eq!(sorted(of_some), sorted(of_class));
        }
    }
}

#[test]
fn who_names_one_object_is_told_of_it_however_many_others_changed() {
    let db = db();
    let vms: Vec<Ref> =
        (0..9).map(|_| db.change(|tx| tx.create(of("VM"), Vec::new())).unwrap()).collect();
    let start = db.read(|view| view.generation());
    let changes_among = |since, which: &[&Ref]| {
        let which = which.iter().map(|&one| one.clone()).collect();
        db.read(|view| {
            let changes = view.since_among(since, of("VM"), &which);
            changes
                .map(|change| (what(&change), change.reference().clone()))
                .collect::<BTreeSet<_>>()
        })
    };
    for vm in &vms[1..8] {
        db.change(|tx| tx.set(vm, vm::Field::name_label, Value::text("b"))).unwrap();
    }
    for vm in &vms[6..] {
        db.change(|tx| tx.destroy(of("VM"), vm)).unwrap();
    }
    let is = |what: &'static str, at: usize| (what, vms[at].clone());
    assert_eq!(changes_among(0, &[&vms[0], &vms[8]]), [is("made", 0)].into());
    assert_eq!(changes_among(start, &[&vms[0]]), [].into());
    assert_eq!(changes_among(start, &[&vms[1], &vms[8]]), [is("changed", 1), is("gone", 8)].into());
    assert_eq!(changes_among(u64::MAX, &[&vms[1], &vms[8]]), [].into());
    assert_eq!(changes_among(start, &[]), [].into());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_changes_keep_everything_together(
        changes in prop::collection::vec(
            (prop::collection::vec(writes(), 1..6), any::<bool>(), 0usize..4),
            1..20,
        ),
    ) {
        let db = Db::new(0, numbered, |_| Ok(()));
        let mut clients: [Client; 3] = Default::default();
        for (all_of_it, fails, asks) in changes {
            let before = db.read(all);
            let made = db.change(|tx| {
                all_of_it.iter().for_each(|one| write(tx, one));
                check(&tx.view());
                if fails { failed() } else { Ok(()) }
            });
            db.read(check);
            if made.is_err() {
                prop_assert_eq!(db.read(all), before);
            }
            if let Some(client) = clients.get_mut(asks) {
                db.read(|view| client.asks(view));
            }
        }
        clients.iter_mut().for_each(|client| db.read(|view| client.asks(view)));
    }
}
