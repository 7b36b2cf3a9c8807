//! Metrics that guests report.

use super::prelude::*;

fields! { "VM_guest_metrics", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Operating system of the guest.
    os_version: ro(PAIRS),
    /// Version of the guest's drivers.
    PV_drivers_version: ro(PAIRS),
    /// True if the drivers are up to date.
    PV_drivers_up_to_date: ro(Bool),
    /// Memory of the guest.
    memory: ro(PAIRS).opt(),
    /// Disks of the guest.
    disks: ro(PAIRS).opt(),
    /// Addresses of the guest, by device and address type.
    networks: ro(PAIRS),
    /// Other reports of the guest, and its capabilities.
    other: ro(PAIRS),
    /// Time of the guest's last report.
    last_updated: ro(Date).volatile(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
    /// True if the guest runs and reports.
    live: ro(Bool).opt(),
    /// Whether VBDs can be plugged while the guest runs.
    can_use_hotplug_vbd: ro(Enum(&enums::TRISTATE_TYPE)).or(Text("unspecified")),
    /// Whether VIFs can be plugged while the guest runs.
    can_use_hotplug_vif: ro(Enum(&enums::TRISTATE_TYPE)).or(Text("unspecified")),
    /// True if the guest has drivers for virtual devices.
    PV_drivers_detected: ro(Bool).opt(),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("VM_guest_metrics", "What a guest tells"), Role::VmAdmin, FIELDS, &[]);
