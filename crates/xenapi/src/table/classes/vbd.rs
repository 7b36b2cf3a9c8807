//! Disk devices of machines.

use super::prelude::*;

fields! { "VBD", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::VBD_OPERATIONS))).opt().volatile(),
    /// What it is doing: from a task to an operation.
    current_operations: ro(Map(&Str, &Enum(&enums::VBD_OPERATIONS))).opt().volatile(),
    /// Its machine.
    VM: rc(Ref("VM")),
    /// The disk that it shows; none if it is empty.
    VDI: rc(Ref("VDI")),
    /// The name that its guest has for it, for people.
    device: rc(Str).opt(),
    /// Its number, from 0, as text.
    userdevice: rw(Str),
    /// Its machine may boot from it.
    bootable: rw(Bool),
    /// Whether its guest may write.
    mode: rc(Enum(&enums::VBD_MODE)),
    /// What its guest sees.
    r#type: rw(Enum(&enums::VBD_TYPE)),
    /// It can be taken out of a running machine.
    unpluggable: rw(Bool).or(Yes),
    /// Its storage holds a lock for it.
    storage_lock: ro(Bool),
    /// There is no disk in it.
    empty: rc(Bool),
    /// Whatever clients keep with it; some keys are settings of the toolstack.
    other_config: rw(PAIRS),
    /// The running machine has it.
    currently_attached: rc(Bool).opt(),
    /// The code of its last failure; 0 for none.
    status_code: ro(Int),
    /// Its last failure, in words.
    status_detail: ro(Str),
    /// What is true of it while it is attached.
    runtime_properties: ro(PAIRS).volatile(),
    /// How its share of the storage is bounded.
    qos_algorithm_type: rw(Str),
    /// Settings of that.
    qos_algorithm_params: rw(PAIRS),
    /// Ways in which it can be bounded.
    qos_supported_algorithms: ro(STRS),
    /// What is measured of it.
    metrics: ro(Ref("VBD_metrics")).opt(),
}

messages! {
    /// Plugs it into its running machine.
    VmAdmin Long plug(self: Ref("VBD"));
    /// Takes it out of its running machine.
    VmAdmin Long unplug(self: Ref("VBD"));
    /// Takes it out without asking the guest.
    VmAdmin Long unplug_force(self: Ref("VBD"));
    /// Puts a CD into it.
    VmOperator Long insert(vbd: Ref("VBD"), vdi: Ref("VDI"));
    /// Takes the CD out of it.
    VmOperator Long eject(vbd: Ref("VBD"));
    /// Sets whether its guest may write.
    VmAdmin Short set_mode(self: Ref("VBD"), value: Enum(&enums::VBD_MODE));
    /// Fails if it could not be plugged into its machine.
    VmAdmin Long assert_attachable(self: Ref("VBD"));
}

/// The class.
pub static CLASS: Class =
    Class::new(("VBD", "A disk device of a machine"), Role::VmAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Short);
