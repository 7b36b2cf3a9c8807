use toolstack::store::{Batch, Key, MemoryStore, Store};
use xenapi::Value;
use xenapi::table::{task, vm};

use super::{NOW, generation, machine, name, numbered, open, update_allowed, wait};
use crate::db::tests::random::{of, since};
use crate::persistence::Persistence;

const UUID: &str = "01234567-89ab-4def-8123-456789abcdef";

/// Builds a row of a VM with a UUID and these fields.
fn row(fields: &str) -> String {
    format!(
        "{{\"ref\":\"OpaqueRef:a\",\"age\":1,\"made\":2,\"changed\":3,\
          \"fields\":{{\"uuid\":\"{UUID}\"{fields}}},\"later\":[1]}}"
    )
}

/// Creates a store with these rows.
fn store(rows: &[(&'static str, &str, &str)]) -> MemoryStore {
    let mut batch = Batch { generation: 9, ceiling: 9, clean: true, ..Batch::default() };
    for (table, name, text) in rows {
        batch.put(Key::new(*table, *name), text.as_bytes().to_vec());
    }
    let mut store = MemoryStore::default();
    store.commit(&batch).unwrap();
    store
}

#[test]
fn what_this_version_does_not_know_is_kept() {
    let fields = ",\"name_label\":\"a\",\"invented\":{\"x\":[1,null,true,-2.5,\"\\u0000\"]},\
                  \"allowed_operations\":[\"of\",\"another\",\"moment\"]";
    let before =
        store(&[("obj/VM", UUID, &row(fields)), ("obj/gadget", "x", "?"), ("own", "y", "z")]);
    let (db, persistence) = open(before.clone());
    assert_eq!(generation(&db), 9);
    let vm = db.read(|view| view.by_uuid(of("VM"), UUID).unwrap().clone());
    assert_eq!((vm.as_str(), name(&db, &vm)), ("OpaqueRef:a", Value::text("a")));
    let domid = db.read(|view| view.get(&vm, vm::Field::domid).unwrap().clone());
    assert_eq!(domid, Value::Int(-1), "what is not there is as the class says");
    wait(persistence.change(|tx| tx.set(&vm, vm::Field::name_label, Value::text("b")))).unwrap();
    persistence.close().unwrap();
    let rows = before.clone().load().unwrap().rows;
    let text = |key: Key| {
        let (_, value) = rows.iter().find(|(one, _)| *one == key).unwrap();
        String::from_utf8(value.clone()).unwrap()
    };
    let machine = text(Key::new("obj/VM", UUID));
    assert!(machine.contains("\"invented\":{\"x\":[1,null,true,-2.5,\"\\u0000\"]}"), "{machine}");
    assert!(machine.contains("\"name_label\":\"b\""), "{machine}");
    assert!(!machine.contains("allowed_operations") && !machine.contains("VBDs"), "{machine}");
    assert_eq!(text(Key::new("obj/gadget", "x")), "?");
    assert_eq!(text(Key::new("own", "y")), "z");
}

#[test]
fn a_row_that_is_none_of_ours_is_refused() {
    let refused = |rows: &[(&'static str, &str, &str)]| {
        let opened = Persistence::open(Box::new(store(rows)), numbered, update_allowed, NOW);
        opened.map(drop).unwrap_err().to_string()
    };
    let good = row("");
    for bad in [
        "",
        "[]",
        "{}",
        &good.replace("OpaqueRef:a", "a"),
        &good.replace("OpaqueRef:a", "OpaqueRef:A"),
        &good.replace("OpaqueRef:a", xenapi::NULL_REF),
        &good.replace("\"made\":2", "\"made\":0"),
        &good.replace("\"made\":2", "\"made\":-1"),
        &good.replace("\"made\":2", "\"made\":4"),
        &good.replace("\"changed\":3", "\"changed\":10"),
        &good.replace("0123", "9999"),
        &row(",\"name_label\":7"),
        &row(",\"power_state\":\"Odd\""),
        &"[".repeat(100_000),
    ] {
        let why = refused(&[("obj/VM", UUID, bad)]);
        assert!(why.starts_with("row `"), "{why}");
    }
    let other = "11234567-89ab-4def-8123-456789abcdef";
    let twin = good.replace(UUID, other);
    let why = refused(&[("obj/VM", UUID, &good), ("obj/VM", other, &twin)]);
    assert!(why.contains("reference occurs twice"), "{why}");
    let twin = twin.replace("OpaqueRef:a", "OpaqueRef:b");
    let why = refused(&[("obj/VM", UUID, &good), ("obj/VM", other, &twin)]);
    assert!(why.contains("age occurs twice"), "{why}");
    let why = refused(&[("meta", "repeated", "x")]);
    assert!(why.contains("no number"), "{why}");
}

#[test]
fn tasks_that_were_under_way_have_failed() {
    let store = MemoryStore::default();
    let (db, persistence) = open(store.clone());
    let task = |status: &str| {
        let given = vec![(task::Field::status.into(), Value::text(status))];
        let (task, made) =
            db.change(|tx| Ok((tx.create(of("task"), given)?, tx.generation()))).unwrap();
        wait(persistence.wait_generation(made)).unwrap();
        task
    };
    let all = ["pending", "cancelling", "success", "failure", "cancelled"].map(task);
    machine(&db, "vm");
    persistence.close().unwrap();
    let last = generation(&db);
    drop((db, persistence));
    let (db, _durable) = open(store);
    db.read(|view| {
        let text = |at: usize, field: task::Field| view.get(&all[at], field).unwrap().clone();
        let status = (0..5).map(|at| text(at, task::Field::status));
        let expected = ["failure", "failure", "success", "failure", "cancelled"];
        assert!(status.eq(expected.map(Value::text)));
        assert!((0..5).all(|at| text(at, task::Field::progress) == Value::Float(1.0)));
        assert_eq!(text(0, task::Field::finished), Value::Date(NOW));
        assert_ne!(text(2, task::Field::finished), Value::Date(NOW));
        let Value::Set(why) = text(1, task::Field::error_info) else { panic!("no set") };
        assert_eq!(why[0], Value::text("INTERNAL_ERROR"));
        assert_eq!(since(view, last).len(), 2, "who asks is told of these");
    });
}
