//! Random changes for tests, and checks that must hold after each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use xenapi::Value;
use xenapi::table::{Class, FieldIx, class, host, pbd, sr, vbd, vdi, vif, vm};

use crate::db::{Change, Ref, Tx, View};

/// Returns 16 unique bytes.
pub(crate) fn numbered() -> [u8; 16] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    bytes
}

/// Returns the class of this name.
pub(crate) fn of(name: &str) -> &'static Class {
    class(name).unwrap()
}

/// Creates a VBD of this VM with this VDI.
pub(crate) fn disk(tx: &mut Tx<'_>, vm: &Ref, vdi: &Ref) -> Ref {
    let fields = vec![(vbd::Field::VM.into(), vm.value()), (vbd::Field::VDI.into(), vdi.value())];
    tx.create(of("VBD"), fields).unwrap()
}

/// Returns all records by reference.
pub(crate) fn all(view: &View<'_>) -> BTreeMap<Ref, Value> {
    let classes = xenapi::table::classes().iter().flat_map(|class| view.all(class));
    classes.map(|object| (object.reference().clone(), object.record().value().clone())).collect()
}

/// Returns the changes since `generation`, in order: existing objects by last change, then
/// deletions.
pub(crate) fn since<'a>(view: &View<'a>, generation: u64) -> Vec<Change<'a>> {
    let classes = xenapi::table::classes().iter();
    let mut changes: Vec<_> = classes.flat_map(|class| view.since(generation, class)).collect();
    changes.sort_by_key(|change| (matches!(change, Change::Gone { .. }), change.when()));
    changes
}

/// Returns the kind of a change.
pub(crate) fn what(change: &Change<'_>) -> &'static str {
    match change {
        Change::Made(_) => "made",
        Change::Changed(_) => "changed",
        Change::Gone { .. } => "gone",
    }
}

/// A random write, on objects by number.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Machine(u8),
    Storage,
    Connection(usize),
    Disk(usize),
    Device(usize, usize),
    Interface(usize),
    Name(usize, u8),
    Move(usize, usize),
    Flag(usize, usize, bool),
    Word(usize, usize),
    Busy(usize, usize, bool),
    Destroy(usize),
}

/// Generates any write.
pub(crate) fn writes() -> impl Strategy<Value = Write> {
    prop_oneof![
        (0u8..3).prop_map(Write::Machine),
        Just(Write::Storage),
        (0usize..4).prop_map(Write::Connection),
        (0usize..4).prop_map(Write::Disk),
        (0usize..8, 0usize..8).prop_map(|(vm, vdi)| Write::Device(vm, vdi)),
        (0usize..8).prop_map(Write::Interface),
        (0usize..8, 0u8..3).prop_map(|(vm, name)| Write::Name(vm, name)),
        (0usize..8, 0usize..8).prop_map(|(vbd, vdi)| Write::Move(vbd, vdi)),
        (0..FLAGS, 0usize..8, any::<bool>()).prop_map(|(f, o, yes)| Write::Flag(f, o, yes)),
        (0..FLAGS, 0usize..8, any::<bool>()).prop_map(|(f, o, yes)| Write::Flag(f, o, yes)),
        (0..WORDS, 0usize..8).prop_map(|(word, object)| Write::Word(word, object)),
        (0usize..5, 0usize..8, any::<bool>()).prop_map(|(c, o, yes)| Write::Busy(c, o, yes)),
        (0usize..48).prop_map(Write::Destroy),
    ]
}

const FLAGS: usize = 13;

fn flag(number: usize) -> FieldIx {
    match number {
        0 => vbd::Field::currently_attached.into(),
        1 => vbd::Field::unpluggable.into(),
        2 => vbd::Field::empty.into(),
        3 => vdi::Field::sharable.into(),
        4 => vdi::Field::read_only.into(),
        5 => vdi::Field::missing.into(),
        6 | 7 => pbd::Field::currently_attached.into(),
        8 => vm::Field::is_a_template.into(),
        9 => vm::Field::is_control_domain.into(),
        10 => vm::Field::is_a_snapshot.into(),
        11 => host::Field::enabled.into(),
        _ => vif::Field::currently_attached.into(),
    }
}

const WORDS: usize = 8;

fn word(number: usize) -> (FieldIx, &'static str) {
    match number {
        0 => (vm::Field::power_state.into(), "Halted"),
        1 | 2 => (vm::Field::power_state.into(), "Running"),
        3 => (vm::Field::power_state.into(), "Suspended"),
        4 => (vbd::Field::mode.into(), "RO"),
        5 => (vbd::Field::mode.into(), "RW"),
        6 => (vbd::Field::r#type.into(), "CD"),
        _ => (vbd::Field::r#type.into(), "Disk"),
    }
}

fn busy(number: usize) -> (FieldIx, &'static str) {
    match number {
        0 => (vm::Field::current_operations.into(), "clean_shutdown"),
        1 => (vbd::Field::current_operations.into(), "plug"),
        2 => (vdi::Field::current_operations.into(), "resize"),
        3 => (sr::Field::current_operations.into(), "scan"),
        _ => (vif::Field::current_operations.into(), "plug"),
    }
}

fn pick(tx: &Tx<'_>, class: &str, number: usize) -> Option<Ref> {
    let view = tx.view();
    let count = view.count(of(class)).max(1);
    view.all(of(class)).nth(number % count).map(|object| object.reference().clone())
}

/// Applies a write if a matching object exists.
pub(crate) fn write(tx: &mut Tx<'_>, write: &Write) {
    let name = |number: u8| Value::text(format!("name {number}"));
    let make = |tx: &mut Tx<'_>, class: &str, fields: &[(FieldIx, Option<Ref>)]| {
        let fields = fields.iter().map(|(field, named)| Some((*field, named.as_ref()?.value())));
        if let Some(fields) = fields.collect::<Option<Vec<_>>>() {
            tx.create(of(class), fields).unwrap();
        }
    };
    match *write {
        Write::Machine(number) => {
            let fields = vec![(vm::Field::name_label.into(), name(number))];
            tx.create(of("VM"), fields).unwrap();
        }
        Write::Storage => make(tx, "SR", &[]),
        Write::Connection(number) => {
            let sr = pick(tx, "SR", number);
            make(tx, "PBD", &[(pbd::Field::SR.into(), sr)]);
        }
        Write::Disk(number) => {
            let sr = pick(tx, "SR", number);
            make(tx, "VDI", &[(vdi::Field::SR.into(), sr)]);
        }
        Write::Device(vm, vdi) => {
            let (vm, vdi) = (pick(tx, "VM", vm), pick(tx, "VDI", vdi));
            make(tx, "VBD", &[(vbd::Field::VM.into(), vm), (vbd::Field::VDI.into(), vdi)]);
        }
        Write::Interface(vm) => {
            let vm = pick(tx, "VM", vm);
            make(tx, "VIF", &[(vif::Field::VM.into(), vm)]);
        }
        Write::Name(vm, number) => {
            if let Some(vm) = pick(tx, "VM", vm) {
                tx.set(&vm, vm::Field::name_label, name(number)).unwrap();
            }
        }
        Write::Move(vbd, vdi) => {
            if let Some((vbd, vdi)) = pick(tx, "VBD", vbd).zip(pick(tx, "VDI", vdi)) {
                tx.set(&vbd, vbd::Field::VDI, vdi.value()).unwrap();
            }
        }
        Write::Flag(number, object, yes) => {
            if let Some(object) = pick(tx, flag(number).class(), object) {
                tx.set(&object, flag(number), Value::Bool(yes)).unwrap();
            }
        }
        Write::Word(number, object) => {
            let (field, word) = word(number);
            if let Some(object) = pick(tx, field.class(), object) {
                tx.set(&object, field, Value::text(word)).unwrap();
            }
        }
        Write::Busy(number, object, yes) => {
            let (field, word) = busy(number);
            if let Some(object) = pick(tx, field.class(), object) {
                tx.set_key(&object, field, "task", yes.then(|| Value::text(word))).unwrap();
            }
        }
        Write::Destroy(number) => {
            let class = ["VM", "VBD", "VDI", "VIF", "PBD", "SR"][number % 6];
            if let Some(reference) = pick(tx, class, number / 6) {
                tx.destroy(of(class), &reference).unwrap();
            }
        }
    }
}

/// Checks derived sets and indexes against the other fields.
pub(crate) fn check(view: &View<'_>) {
    for (holder, set, class, field) in [
        ("VM", vm::Field::VBDs.into(), "VBD", FieldIx::from(vbd::Field::VM)),
        ("VM", vm::Field::VIFs.into(), "VIF", vif::Field::VM.into()),
        ("VDI", vdi::Field::VBDs.into(), "VBD", vbd::Field::VDI.into()),
        ("SR", sr::Field::VDIs.into(), "VDI", vdi::Field::SR.into()),
        ("SR", sr::Field::PBDs.into(), "PBD", pbd::Field::SR.into()),
    ] {
        for object in view.all(of(holder)) {
            let named = view.all(of(class));
            let named = named.filter(|one| one.get(field) == Some(&object.reference().value()));
            let named: BTreeSet<String> = named.map(|one| one.reference().to_string()).collect();
            let Some(Value::Set(set)) = object.get(set) else { panic!("no set") };
            let listed = set.iter().map(|one| match one {
                Value::Str(text) => text.clone(),
                other => panic!("{other:?}"),
            });
            assert_eq!(listed.clone().count(), named.len(), "one is there twice");
            assert_eq!(listed.collect::<BTreeSet<_>>(), named);
        }
    }
    let has = |class, field: FieldIx, value: &Value| {
        let objects = view.all(of(class)).filter(|one| one.get(field) == Some(value));
        objects.map(|one| one.reference().clone()).collect::<Vec<_>>()
    };
    for name in ["name 0", "name 1", "name 2"] {
        let named = has("VM", vm::Field::name_label.into(), &Value::text(name));
        assert_eq!(view.by_name(of("VM"), name).cloned().collect::<Vec<_>>(), named);
    }
    let attached = has("VBD", vbd::Field::currently_attached.into(), &Value::Bool(true));
    assert_eq!(view.attached(of("VBD")).cloned().collect::<Vec<_>>(), attached);
}
