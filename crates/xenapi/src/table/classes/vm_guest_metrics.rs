//! What guests tell.

use super::prelude::*;

fields! { "VM_guest_metrics", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// The guest's operating system.
    os_version: ro(PAIRS),
    /// The version of its drivers.
    PV_drivers_version: ro(PAIRS),
    /// Those drivers are the latest.
    PV_drivers_up_to_date: ro(Bool),
    /// Its memory.
    memory: ro(PAIRS).opt(),
    /// Its disks.
    disks: ro(PAIRS).opt(),
    /// Its addresses: from device and kind to address.
    networks: ro(PAIRS),
    /// Whatever else it tells, and what it can do.
    other: ro(PAIRS),
    /// When it last told something.
    last_updated: ro(Date).volatile(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
    /// It runs and tells.
    live: ro(Bool).opt(),
    /// Disk devices can be plugged while it runs.
    can_use_hotplug_vbd: ro(Enum(&enums::TRISTATE_TYPE)).or(Text("unspecified")),
    /// Network devices can be plugged while it runs.
    can_use_hotplug_vif: ro(Enum(&enums::TRISTATE_TYPE)).or(Text("unspecified")),
    /// It has drivers for virtual devices.
    PV_drivers_detected: ro(Bool).opt(),
}

/// The class.
pub static CLASS: Class =
    Class::new(("VM_guest_metrics", "What a guest tells"), Role::VmAdmin, FIELDS, &[]);
