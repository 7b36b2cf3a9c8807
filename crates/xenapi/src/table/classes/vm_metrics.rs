//! What is measured of machines.

use super::prelude::*;

fields! { "VM_metrics", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// Memory that the machine has, in bytes.
    memory_actual: ro(Int).volatile(),
    /// CPUs that the machine has.
    VCPUs_number: ro(Int).volatile(),
    /// How busy each of its CPUs is, from 0 to 1.
    VCPUs_utilisation: ro(Map(&Int, &Float)).opt().volatile(),
    /// The host's CPU on which each of them runs.
    VCPUs_CPU: ro(Map(&Int, &Int)).volatile(),
    /// How they are shared out.
    VCPUs_params: ro(PAIRS).volatile(),
    /// What each of them is doing.
    VCPUs_flags: ro(Map(&Int, &STRS)).volatile(),
    /// What the machine is doing.
    state: ro(STRS).volatile(),
    /// When it was started.
    start_time: ro(Date),
    /// When it was installed.
    install_time: ro(Date),
    /// When this was last found.
    last_updated: ro(Date).volatile(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
    /// The machine runs by hardware virtualisation.
    hvm: ro(Bool).opt(),
    /// The machine can run machines itself.
    nested_virt: ro(Bool).opt(),
    /// Something in the machine keeps it from moving.
    nomigrate: ro(Bool).opt(),
    /// How it is virtualised while it runs.
    current_domain_type: ro(Enum(&enums::DOMAIN_TYPE)).or(Text("unspecified")),
}

/// The class.
pub static CLASS: Class =
    Class::new(("VM_metrics", "What is measured of a machine"), Role::VmAdmin, FIELDS, &[]);
