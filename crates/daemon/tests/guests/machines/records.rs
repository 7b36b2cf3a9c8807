//! Parameters of calls.

use std::collections::BTreeMap;

use xenapi::{NULL_REF, Value};

pub(crate) fn record<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Map(BTreeMap::from(members.map(|(name, value)| (name.to_owned(), value))))
}

pub(crate) fn of(reference: &str) -> Vec<Value> {
    vec![Value::text(reference)]
}

/// Returns a reference and further parameters.
pub(crate) fn with(reference: &str, more: impl IntoIterator<Item = Value>) -> Vec<Value> {
    std::iter::once(Value::text(reference)).chain(more).collect()
}

pub(crate) fn start(machine: &str) -> Vec<Value> {
    with(machine, [Value::Bool(false), Value::Bool(false)])
}

/// Returns the record of a VBD, or of an empty drive if there is no disk.
pub(crate) fn slot(machine: &str, disk: Option<&str>) -> Value {
    let (kind, mode) = if disk.is_some() { ("Disk", "RW") } else { ("CD", "RO") };
    record([
        ("VM", Value::text(machine)),
        ("VDI", Value::text(disk.unwrap_or(NULL_REF))),
        ("userdevice", Value::text("autodetect")),
        ("bootable", Value::Bool(false)),
        ("mode", Value::text(mode)),
        ("type", Value::text(kind)),
        ("empty", Value::Bool(disk.is_none())),
        ("other_config", record([])),
        ("qos_algorithm_type", Value::text("")),
        ("qos_algorithm_params", record([])),
    ])
}

/// Returns the record of a VIF.
pub(crate) fn interface(machine: &str, net: &str) -> Value {
    record([
        ("VM", Value::text(machine)),
        ("network", Value::text(net)),
        ("device", Value::text("autodetect")),
        ("MAC", Value::text("")),
        ("MTU", Value::Int(1500)),
        ("other_config", record([])),
        ("qos_algorithm_type", Value::text("")),
        ("qos_algorithm_params", record([])),
    ])
}
