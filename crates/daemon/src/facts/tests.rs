use std::collections::BTreeMap;

use model::sr::SrOp;
use model::vbd::{VbdKind, VbdOp};
use model::vdi::VdiOp;
use model::vdi::automaton::Access;
use model::vm::{PowerState, Tristate, VmOp};
use xenapi::table::{pbd, sr, vbd, vdi, vif, vm, vm_guest_metrics};
use xenapi::{NULL_REF, Value};

use crate::db::tests::random::{disk, numbered, of};
use crate::db::{Db, Ref};
use crate::facts;

fn map(pairs: &[(&str, &str)]) -> Value {
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), Value::text(*value)));
    Value::Map(pairs.collect())
}

/// Creates a VM with a VDI in an SR, and a second VBD of that VDI.
fn world() -> (Db, [Ref; 6]) {
    let db = Db::new(0, numbered, |_| Ok(()));
    let all = db.write_observed(|tx| {
        let sr = tx.create(of("SR"), Vec::new())?;
        let pbd = tx.create(of("PBD"), vec![(pbd::Field::SR.into(), sr.value())])?;
        let vdi = tx.create(of("VDI"), vec![(vdi::Field::SR.into(), sr.value())])?;
        let vm = tx.create(of("VM"), Vec::new())?;
        let (one, two) = (disk(tx, &vm, &vdi), disk(tx, &vm, &vdi));
        Ok([sr, pbd, vdi, vm, one, two])
    });
    (db, all.unwrap())
}

#[test]
fn of_a_machine() {
    let (db, [.., machine, _, _]) = world();
    let facts = || db.read(|view| facts::vm(view, &machine).unwrap());
    assert_eq!(facts(), model::vm::VmFacts::new(PowerState::Halted));
    let metrics = db
        .write_observed(|tx| {
            let metrics = tx.create(of("VM_guest_metrics"), Vec::new())?;
            tx.set(&machine, vm::Field::power_state, Value::text("Running"))?;
            tx.set(&machine, vm::Field::is_a_template, Value::Bool(true))?;
            tx.set(&machine, vm::Field::is_default_template, Value::Bool(true))?;
            tx.set(&machine, vm::Field::is_a_snapshot, Value::Bool(true))?;
            tx.set(&machine, vm::Field::is_control_domain, Value::Bool(true))?;
            tx.set(&machine, vm::Field::current_operations, map(&[("task", "start")]))?;
            tx.set(&machine, vm::Field::blocked_operations, map(&[("destroy", "mine")]))?;
            tx.set(&machine, vm::Field::guest_metrics, metrics.value())?;
            Ok(metrics)
        })
        .unwrap();
    let all = facts();
    assert_eq!(all.power, PowerState::Running);
    assert!(all.is_template && all.is_default_template && all.is_snapshot && all.is_control_domain);
    assert_eq!(all.current, [VmOp::Start]);
    assert_eq!(all.blocked, BTreeMap::from([(VmOp::Destroy, "mine".to_owned())]));
    assert_eq!((all.guest.drivers, all.guest.shutdown), (Tristate::Unknown, Tristate::Unknown));
    db.write_observed(|tx| {
        use vm_guest_metrics::Field;
        tx.set(&metrics, Field::PV_drivers_detected, Value::Bool(true))?;
        tx.set(&metrics, Field::other, map(&[("feature-shutdown", "1")]))?;
        tx.set(&metrics, Field::can_use_hotplug_vbd, Value::text("yes"))?;
        tx.set(&metrics, Field::can_use_hotplug_vif, Value::text("no"))
    })
    .unwrap();
    let guest = facts().guest;
    assert_eq!((guest.drivers, guest.shutdown), (Tristate::Yes, Tristate::Yes));
    assert_eq!((guest.hotplug_vbd, guest.hotplug_vif), (Tristate::Yes, Tristate::No));
    let error = db.read(|view| facts::vm(view, &metrics)).unwrap_err();
    assert_eq!(error.details(), ["HANDLE_INVALID", "VM", metrics.as_str()]);
}

#[test]
fn of_a_disk_and_its_slots() {
    let (db, [storage, connection, disk, machine, one, two]) = world();
    let facts = || db.read(|view| facts::vdi(view, &disk).unwrap());
    let before = facts();
    assert!(!before.sr_attached && before.current.is_empty() && before.users.len() == 2);
    db.write_observed(|tx| {
        tx.set(&connection, pbd::Field::currently_attached, Value::Bool(true))?;
        tx.set(&machine, vm::Field::power_state, Value::text("Paused"))?;
        for field in [vdi::Field::sharable, vdi::Field::read_only, vdi::Field::missing] {
            tx.set(&disk, field, Value::Bool(true))?;
        }
        tx.set(&disk, vdi::Field::current_operations, map(&[("task", "resize")]))?;
        tx.set(&two, vbd::Field::mode, Value::text("RW"))?;
        tx.set(&two, vbd::Field::currently_attached, Value::Bool(true))?;
        tx.set(&two, vbd::Field::current_operations, map(&[("task", "unplug")]))
    })
    .unwrap();
    let after = facts();
    assert!(after.sharable && after.read_only && after.missing && after.sr_attached);
    assert_eq!(after.current, [VdiOp::Resize]);
    let user = after.users[1];
    assert_eq!((user.access, user.attached), (Access::Rw, true));
    assert_eq!((user.op, user.vm), (Some(VbdOp::Unplug), PowerState::Paused));
    let slot = |of: &Ref| db.read(|view| facts::vbd(view, of).unwrap());
    assert_eq!(slot(&one).vdi.unwrap().users, [user], "the others");
    let slot = slot(&two);
    assert_eq!((slot.kind, slot.mode, slot.attached), (VbdKind::Cd, Access::Rw, true));
    assert_eq!((slot.current, slot.unpluggable, slot.empty), (vec![VbdOp::Unplug], true, false));
    db.read(|view| {
        assert_eq!(facts::vbd_with(view, &two, &Ref::from(NULL_REF)).unwrap().vdi, None);
        let all = facts::sr(view, &storage).unwrap();
        assert!(all.has_pbd && all.attached && all.has_vdi);
        assert_eq!(facts::used_disk(view, &storage).as_ref(), Some(&disk));
    });
    db.write_observed(|tx| tx.set(&two, vbd::Field::currently_attached, Value::Bool(false)))
        .unwrap();
    db.write_observed(|tx| {
        tx.set(&storage, sr::Field::current_operations, map(&[("task", "scan")]))
    })
    .unwrap();
    let all = db.read(|view| facts::sr(view, &storage).unwrap());
    let used = || db.read(|view| facts::used_disk(view, &storage));
    assert_eq!(used().as_ref(), Some(&disk), "it is just being unplugged");
    db.write_observed(|tx| tx.set(&two, vbd::Field::current_operations, map(&[]))).unwrap();
    assert_eq!(used(), None);
    assert_eq!(all.current, [SrOp::Scan]);
}

#[test]
fn of_an_interface() {
    let db = Db::new(0, numbered, |_| Ok(()));
    let interface = db.write_observed(|tx| {
        let given = vec![(vif::Field::currently_attached.into(), Value::Bool(true))];
        tx.create(of("VIF"), given)
    });
    let facts = db.read(|view| facts::vif(view, &interface.unwrap()).unwrap());
    assert!(facts.attached && facts.current.is_empty());
}
