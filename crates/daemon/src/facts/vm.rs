//! Facts about VMs.

use std::collections::BTreeMap;

use model::vm::{GuestFeatures, Tristate, VmFacts, VmOp};
use xenapi::table::vm::Field;
use xenapi::table::vm_guest_metrics::Field as Guest;
use xenapi::{ApiError, Value};

use super::{class, flag, operations, power, reference, text};
use crate::db::{Ref, View};

/// Returns the facts of a VM.
///
/// # Errors
/// `HANDLE_INVALID` if the VM does not exist.
pub fn vm(view: &View<'_>, vm: &Ref) -> Result<VmFacts, ApiError> {
    view.object(class("VM")?, vm)?;
    Ok(VmFacts {
        power: power(view, vm),
        is_template: flag(view, vm, Field::is_a_template),
        is_default_template: flag(view, vm, Field::is_default_template),
        is_snapshot: flag(view, vm, Field::is_a_snapshot),
        is_control_domain: flag(view, vm, Field::is_control_domain),
        current: operations(view, vm, Field::current_operations, VmOp::parse),
        blocked: blocked(view, vm),
        guest: guest(view, &reference(view, vm, Field::guest_metrics)),
    })
}

fn blocked(view: &View<'_>, vm: &Ref) -> BTreeMap<VmOp, String> {
    let Ok(Value::Map(members)) = view.get(vm, Field::blocked_operations) else {
        return BTreeMap::new();
    };
    let pair = |(op, why): (&String, &Value)| match why {
        Value::Str(why) => Some((VmOp::parse(op)?, why.clone())),
        _ => None,
    };
    members.iter().filter_map(pair).collect()
}

/// Returns the features that a guest has reported. Empty if the VM has no guest metrics.
fn guest(view: &View<'_>, metrics: &Ref) -> GuestFeatures {
    let Ok(Value::Map(other)) = view.get(metrics, Guest::other) else {
        return GuestFeatures::default();
    };
    let shutdown = match other.get("feature-shutdown") {
        Some(Value::Str(value)) if value == "0" => Tristate::No,
        Some(_) => Tristate::Yes,
        None => Tristate::Unknown,
    };
    let tristate = |field: Guest| match text(view, metrics, field) {
        "yes" => Tristate::Yes,
        "no" => Tristate::No,
        _ => Tristate::Unknown,
    };
    let detected = flag(view, metrics, Guest::PV_drivers_detected);
    GuestFeatures {
        // Metrics may hold only addresses seen on the network, which say nothing about drivers.
        drivers: if detected { Tristate::Yes } else { Tristate::Unknown },
        shutdown,
        hotplug_vbd: tristate(Guest::can_use_hotplug_vbd),
        hotplug_vif: tristate(Guest::can_use_hotplug_vif),
    }
}
