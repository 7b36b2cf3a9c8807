use std::cell::Cell;

use proptest::prelude::*;
use xenapi::Value;
use xenapi::table::{pbd, vbd, vdi, vm};

use super::{of_host, of_sr, of_vbd, of_vdi, of_vif, of_vm, recompute, update_allowed};
use crate::db::tests::random::{disk, numbered, of, write, writes};
use crate::db::{Db, Ref, View};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Creates a database that counts the objects recomputed by each change.
fn counted() -> Db {
    Db::new(0, numbered, |tx| {
        let count = recompute(tx)?;
        COUNT.set(count);
        Ok(())
    })
}

/// Asserts that a full recomputation gives the recorded values.
fn check(view: &View<'_>) {
    for (class, allowed) in [
        ("VM", of_vm as fn(&View<'_>, &Ref) -> super::Names),
        ("VBD", of_vbd),
        ("VDI", of_vdi),
        ("SR", of_sr),
        ("VIF", of_vif),
        ("host", of_host),
    ] {
        let (field, _) = of(class).field("allowed_operations").unwrap();
        for object in view.all(of(class)) {
            let names = allowed(view, object.reference()).unwrap();
            let names = names.into_iter().map(Value::text).collect();
            let has = object.get(field).unwrap();
            assert_eq!(has, &Value::Set(names), "{class} {}", object.reference());
        }
    }
}

/// Creates a host, two VMs (one runs) and two VDIs with VBDs of both VMs. Random histories would
/// rarely produce this state.
fn shared_disks(db: &Db) {
    let made = db.write_observed(|tx| {
        tx.create(of("host"), Vec::new())?;
        let sr = tx.create(of("SR"), Vec::new())?;
        let connection = tx.create(of("PBD"), vec![(pbd::Field::SR.into(), sr.value())])?;
        tx.set(&connection, pbd::Field::currently_attached, Value::Bool(true))?;
        let power = (vm::Field::power_state.into(), Value::text("Running"));
        let machines = [tx.create(of("VM"), vec![power])?, tx.create(of("VM"), Vec::new())?];
        for mode in ["RW", "RO"] {
            let vdi = tx.create(of("VDI"), vec![(vdi::Field::SR.into(), sr.value())])?;
            for machine in &machines {
                let slot = disk(tx, machine, &vdi);
                tx.set(&slot, vbd::Field::mode, Value::text(mode))?;
            }
        }
        Ok(())
    });
    made.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_follows_is_what_working_out_everything_gives(
        changes in prop::collection::vec(prop::collection::vec(writes(), 1..4), 1..40),
    ) {
        let db = Db::new(0, numbered, update_allowed);
        shared_disks(&db);
        for all_of_it in changes {
            db.write_observed(|tx| {
                all_of_it.iter().for_each(|one| write(tx, one));
                Ok(())
            })
            .unwrap();
            db.read(check);
        }
    }
}

fn allows(db: &Db, class: &str, object: &Ref, operation: &str) -> bool {
    let (field, _) = of(class).field("allowed_operations").unwrap();
    db.read(|view| match view.get(object, field).unwrap() {
        Value::Set(names) => names.contains(&Value::text(operation)),
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_plug_concerns_few_of_very_many() {
    const DISKS: usize = 15_000;
    let db = counted();
    let (sr, connection) = db
        .write_observed(|tx| {
            let sr = tx.create(of("SR"), Vec::new())?;
            let given = vec![(pbd::Field::SR.into(), sr.value())];
            Ok((sr, tx.create(of("PBD"), given)?))
        })
        .unwrap();
    db.write_observed(|tx| tx.set(&connection, pbd::Field::currently_attached, Value::Bool(true)))
        .unwrap();
    let mut last = None;
    for number in 0..DISKS {
        let made = db.write_observed(|tx| {
            let disk = tx.create(of("VDI"), vec![(vdi::Field::SR.into(), sr.value())])?;
            Ok(disk)
        });
        let vdi = made.unwrap();
        assert!(COUNT.get() <= 2, "the disk and its SR");
        if number % 15 == 0 {
            let power = (vm::Field::power_state.into(), Value::text("Running"));
            last = Some(db.write_observed(|tx| {
                let machine = tx.create(of("VM"), vec![power])?;
                Ok(disk(tx, &machine, &vdi))
            }))
        }
    }
    let vbd = last.unwrap().unwrap();
    assert!(allows(&db, "VBD", &vbd, "attach") && !allows(&db, "VBD", &vbd, "unplug_force"));
    db.write_observed(|tx| {
        tx.set_key(&vbd, vbd::Field::current_operations, "task", Some(Value::text("plug")))
    })
    .unwrap();
    assert!(COUNT.get() <= 5, "{} were worked out", COUNT.get());
    assert!(!allows(&db, "VBD", &vbd, "attach"), "it is being plugged");
    db.write_observed(|tx| {
        tx.set(&vbd, vbd::Field::currently_attached, Value::Bool(true))?;
        tx.set_key(&vbd, vbd::Field::current_operations, "task", None)
    })
    .unwrap();
    assert!((1..=5).contains(&COUNT.get()), "{} were worked out", COUNT.get());
    db.write_observed(|tx| tx.set(&vbd, vbd::Field::currently_attached, Value::Bool(false)))
        .unwrap();
    assert!((1..=5).contains(&COUNT.get()), "{} were worked out", COUNT.get());
    assert!(allows(&db, "SR", &sr, "unplug"), "whether a disk is in use is asked by the call");
    db.write_observed(|tx| tx.set(&vbd, vbd::Field::other_config, Value::Map(Default::default())))
        .unwrap();
    db.write_observed(|tx| tx.set(&vbd, vbd::Field::bootable, Value::Bool(true))).unwrap();
    assert_eq!(COUNT.get(), 0, "no gate reads it");
    db.read(check);
}

/// A VBD that is detached and destroyed in one change leaves its VDI free.
#[test]
fn a_slot_that_is_gone_with_its_use_frees_its_disk() {
    let db = Db::new(0, numbered, update_allowed);
    let (slot, vdi) = db
        .write_observed(|tx| {
            let sr = tx.create(of("SR"), Vec::new())?;
            let machine = tx.create(of("VM"), Vec::new())?;
            let vdi = tx.create(of("VDI"), vec![(vdi::Field::SR.into(), sr.value())])?;
            Ok((disk(tx, &machine, &vdi), vdi))
        })
        .unwrap();
    db.write_observed(|tx| tx.set(&slot, vbd::Field::currently_attached, Value::Bool(true)))
        .unwrap();
    assert!(!allows(&db, "VDI", &vdi, "forget"));
    db.write_observed(|tx| {
        tx.set(&slot, vbd::Field::currently_attached, Value::Bool(false))?;
        tx.destroy(of("VBD"), &slot)
    })
    .unwrap();
    assert!(allows(&db, "VDI", &vdi, "forget"));
    db.read(check);
}
