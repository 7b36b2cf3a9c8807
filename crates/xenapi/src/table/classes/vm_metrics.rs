//! Metrics of VMs.

use super::prelude::*;

fields! { "VM_metrics", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Current memory in bytes.
    memory_actual: ro(Int).volatile(),
    /// Current number of CPUs.
    VCPUs_number: ro(Int).volatile(),
    /// Utilization of each virtual CPU, from 0 to 1.
    VCPUs_utilisation: ro(Map(&Int, &Float)).opt().volatile(),
    /// Host CPU on which each virtual CPU runs.
    VCPUs_CPU: ro(Map(&Int, &Int)).volatile(),
    /// Scheduling parameters of the virtual CPUs.
    VCPUs_params: ro(PAIRS).volatile(),
    /// State flags of each virtual CPU.
    VCPUs_flags: ro(Map(&Int, &STRS)).volatile(),
    /// State flags of the VM.
    state: ro(STRS).volatile(),
    /// Start time.
    start_time: ro(Date),
    /// Installation time.
    install_time: ro(Date),
    /// Time of the last update.
    last_updated: ro(Date).volatile(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
    /// True if the VM runs with hardware virtualization.
    hvm: ro(Bool).opt(),
    /// True if the VM uses nested virtualization.
    nested_virt: ro(Bool).opt(),
    /// True if the VM cannot be migrated.
    nomigrate: ro(Bool).opt(),
    /// Current virtualization type.
    current_domain_type: ro(Enum(&enums::DOMAIN_TYPE)).or(Text("unspecified")),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("VM_metrics", "What is measured of a machine"), Role::VmAdmin, FIELDS, &[]);
