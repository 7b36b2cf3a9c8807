//! Commands for the memory of machines.

use xenapi::Value;

use super::Command;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::{self, ANY_VM, VM_OR_TEMPLATE};
use crate::xe::XeSession;

pub(super) const COMMANDS: &[Command] = &[
    Command::own(
        "vm-memory-set",
        "Sets the memory of machines: all bounds except the static minimum.",
        set,
    )
    .required(&["memory"])
    .of(&VM_OR_TEMPLATE),
    Command::own("vm-memory-limits-set", "Sets the four bounds of machines' memory.", limits)
        .required(&["static-min", "static-max", "dynamic-min", "dynamic-max"])
        .of(&VM_OR_TEMPLATE),
    Command::own(
        "vm-memory-static-range-set",
        "Sets the static minimum and maximum of machines' memory.",
        static_range,
    )
    .required(&["min", "max"])
    .of(&VM_OR_TEMPLATE),
    Command::own(
        "vm-memory-dynamic-range-set",
        "Sets the dynamic minimum and maximum of machines' memory.",
        dynamic_range,
    )
    .required(&["min", "max"])
    .of(&VM_OR_TEMPLATE),
    Command::own("vm-memory-target-set", "Sets the memory target of machines.", target)
        .required(&["target"])
        .of(&ANY_VM)
        .later(),
    Command::own(
        "vm-compute-memory-overhead",
        "Prints the memory overhead of machines, in bytes.",
        overhead,
    )
    .of(&ANY_VM),
];

fn set(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    on_all(xe, params, "VM.set_memory", &["memory"])
}

fn limits(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let names = ["static-min", "static-max", "dynamic-min", "dynamic-max"];
    on_all(xe, params, "VM.set_memory_limits", &names)
}

fn static_range(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    on_all(xe, params, "VM.set_memory_static_range", &["min", "max"])
}

fn dynamic_range(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    on_all(xe, params, "VM.set_memory_dynamic_range", &["min", "max"])
}

fn target(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    on_all(xe, params, "VM.set_memory_target_live", &["target"])
}

/// Calls the method with these sizes, in order, on each selected machine.
fn on_all(
    xe: &mut XeSession,
    params: &Params,
    method: &str,
    names: &[&str],
) -> Result<Printed, XeError> {
    let sizes: Vec<_> =
        names.iter().map(|name| params.size(name).map(Value::Int)).collect::<Result<_, _>>()?;
    let all = selector::some(xe, params, &VM_OR_TEMPLATE, names)?;
    selector::together(xe, all, |xe, one| {
        let values: Vec<_> = std::iter::once(one.value()).chain(sizes.iter().cloned()).collect();
        xe.begin(method, &values)
    })?;
    Ok(Printed::nothing())
}

fn overhead(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let all = selector::some(xe, params, &ANY_VM, &[])?;
    let bytes = selector::together(xe, all, |xe, one| {
        xe.begin("VM.compute_memory_overhead", &[one.value()])
    })?;
    let text = |bytes: Value| match bytes {
        Value::Int(bytes) => bytes.to_string(),
        _ => String::new(),
    };
    Ok(Printed::Values(bytes.into_iter().map(text).collect()))
}
