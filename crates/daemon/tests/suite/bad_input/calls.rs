//! Invalid calls: unknown methods, wrong numbers or types of parameters, unknown objects.

use xenapi::{NULL_REF, Value};

use super::{ANY, World, map, none, row};

const NO: &str = "OpaqueRef:00000000-0000-4000-8000-000000000000";

#[test]
fn a_call_that_is_none_is_told_what_is_wrong_with_it() {
    let mut world = World::new();
    let vm = world.machine("m");
    let it = || Value::text(vm.as_str());
    let (no, yes) = (|| Value::text(NO), || Value::Bool(true));
    let count = "MESSAGE_PARAMETER_COUNT_MISMATCH";
    world.refuses(&[
        row("VM.fly", [it()], ["MESSAGE_METHOD_UNKNOWN", "VM.fly"]),
        row("vm.get_uuid", [it()], ["MESSAGE_METHOD_UNKNOWN", "vm.get_uuid"]),
        row("Async.VM.get_uuid", [it()], ["MESSAGE_METHOD_UNKNOWN", "Async.VM.get_uuid"]),
        row("VM.suspend", [it()], ["VM_BAD_POWER_STATE", &vm, "running", "halted"]),
        row("VM.start", [it()], [count, "VM.start", "3", "1"]),
        row("VM.get_uuid", [], [count, "VM.get_uuid", "1", "0"]),
        row("VM.get_uuid", [it(), it()], [count, "VM.get_uuid", "1", "2"]),
        row("VM.start", [it(), Value::text("no"), yes()], ["FIELD_TYPE_ERROR", "start_paused"]),
        row("VM.set_name_label", [it(), Value::Int(7)], ["FIELD_TYPE_ERROR", "value"]),
        row("VM.set_name_label", [it(), none()], ["FIELD_TYPE_ERROR", "value"]),
        row("VM.set_name_label", [it(), Value::Null], ["FIELD_TYPE_ERROR", "value"]),
        row("VM.set_other_config", [it(), Value::text("")], ["FIELD_TYPE_ERROR", "value"]),
        row("VM.set_memory", [it(), Value::Float(0.5)], ["FIELD_TYPE_ERROR", "value"]),
        row("VM.create", [Value::text("x")], ["FIELD_TYPE_ERROR", "args"]),
        row("VDI.create", [none()], ["FIELD_TYPE_ERROR", ANY]),
        row("VM.set_actions_after_crash", [it(), Value::text("x")], ["FIELD_TYPE_ERROR", "value"]),
    ]);
    world.refuses(&[
        row("VM.get_uuid", [no()], ["HANDLE_INVALID", "VM", NO]),
        row("VM.get_uuid", [Value::text("nonsense")], ["HANDLE_INVALID", "VM", "nonsense"]),
        row("VM.get_uuid", [Value::text(NULL_REF)], ["HANDLE_INVALID", "VM", NULL_REF]),
        row("VDI.get_uuid", [it()], ["HANDLE_INVALID", "VDI", &vm]),
        row("VM.start", [no(), yes(), yes()], ["HANDLE_INVALID", "VM", NO]),
        row("Async.VM.start", [no(), yes(), yes()], ["HANDLE_INVALID", "VM", NO]),
        row("VDI.set_SR", [no(), no()], ["MESSAGE_METHOD_UNKNOWN", "VDI.set_SR"]),
        row("VM.get_by_uuid", [Value::text("x")], ["UUID_INVALID", "VM", "x"]),
        row("VBD.plug", [no()], ["HANDLE_INVALID", "VBD", NO]),
        row("task.cancel", [no()], ["HANDLE_INVALID", "task", NO]),
        row(
            "VM.get_all_records_where",
            [Value::text("field \"x\" =")],
            ["INVALID_VALUE", ANY, ANY],
        ),
    ]);
}

#[test]
fn values_that_no_object_can_have_are_refused() {
    let mut world = World::new();
    let vm = world.machine("m");
    let it = || Value::text(vm.as_str());
    let key = [it(), Value::text("k"), Value::text("v")];
    world.call("VM.add_to_other_config", &key);
    let sr = Value::text(world.first("SR"));
    let disk = |bytes: Value| {
        map([
            ("name_label", Value::text("d")),
            ("SR", sr.clone()),
            ("virtual_size", bytes),
            ("type", Value::text("user")),
            ("sharable", Value::Bool(false)),
            ("read_only", Value::Bool(false)),
            ("other_config", none()),
        ])
    };
    let uuid = world.made("VM.get_uuid", &[it()]);
    let long = || Value::text("x".repeat(250 << 10));
    let twice = ["MAP_DUPLICATE_KEY", "VM", "other_config", &uuid, "k"];
    let size = |bytes: &'static str| ["INVALID_VALUE", "virtual_size", bytes];
    let [k, v] = ["k", "v"].map(Value::text);
    world.refuses(&[
        row("VM.add_to_other_config", [it(), k, v], twice),
        row("VDI.create", [disk(Value::Int(-1))], size("-1")),
        row("VDI.create", [disk(Value::Int(0))], size("0")),
        row("VDI.create", [disk(Value::Int(i64::MAX))], size("9223372036854775807")),
        row("VDI.create", [disk(Value::text("1 GiB"))], ["FIELD_TYPE_ERROR", "virtual_size"]),
        row("VM.set_memory", [it(), Value::Int(-1)], ["MEMORY_CONSTRAINT_VIOLATION", ANY]),
    ]);
    // Each call is small enough, but the record would become too large.
    for key in ["1", "2", "3", "4"] {
        world.call("VM.add_to_xenstore_data", &[it(), Value::text(key), long()]);
    }
    let too_much = ["VALUE_NOT_SUPPORTED", "xenstore_data", "", ANY];
    world.refuses(&[
        row("VM.add_to_xenstore_data", [it(), Value::text("5"), long()], too_much),
        row("VM.set_name_label", [it(), long()], ["VALUE_NOT_SUPPORTED", "name_label", "", ANY]),
    ]);
    world.call("VM.remove_from_xenstore_data", &[it(), Value::text("1")]);
    world.call("VM.set_name_label", &[it(), long()]);
}

#[test]
fn more_calls_than_are_let_in_are_refused_at_once() {
    const OF_SESSION: usize = 500;
    let mut world = World::new();
    let create = ["t", ""].map(Value::text);
    for _ in 0..OF_SESSION {
        world.call("task.create", &create);
    }
    assert_eq!(world.refused("task.create", &create), ["TOO_MANY_PENDING_TASKS"]);
    world.call("VM.get_all", &[]);
    let mut other = world.daemon.client().unwrap();
    other.call("task.create", &create).unwrap();
    world.root.logout().unwrap();
    let tasks = other.records("task").unwrap();
    let pending = tasks.iter().filter(|(_, task)| task.text("status") == "pending").count();
    assert_eq!(pending, 1, "what nobody works on any more has ended");
}
