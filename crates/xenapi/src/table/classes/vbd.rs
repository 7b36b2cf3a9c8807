//! VBDs: disk devices of VMs.

use super::prelude::*;

fields! { "VBD", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::VBD_OPERATIONS))).opt().volatile(),
    /// Operations in progress, by task.
    current_operations: ro(Map(&Str, &Enum(&enums::VBD_OPERATIONS))).opt().volatile(),
    /// VM of the device.
    VM: rc(Ref("VM")),
    /// VDI of the device. Null if the drive is empty.
    VDI: rc(Ref("VDI")),
    /// Device name in the guest.
    device: rc(Str).opt(),
    /// Number of the device from 0, as text.
    userdevice: rw(Str),
    /// True if the VM may boot from the device.
    bootable: rw(Bool),
    /// Access mode of the guest.
    mode: rc(Enum(&enums::VBD_MODE)),
    /// Device type that the guest sees.
    r#type: rw(Enum(&enums::VBD_TYPE)),
    /// True if the device can be unplugged from a running VM.
    unpluggable: rw(Bool).or(Yes),
    /// True if the storage holds a lock for the device.
    storage_lock: ro(Bool),
    /// True if the drive contains no VDI.
    empty: rc(Bool),
    /// Additional settings of clients. Some keys are settings of the toolstack.
    other_config: rw(PAIRS),
    /// True if the device is plugged into the running VM.
    currently_attached: rc(Bool).opt(),
    /// Code of the last failure, or 0 for none.
    status_code: ro(Int),
    /// Text of the last failure.
    status_detail: ro(Str),
    /// Properties of the attached device.
    runtime_properties: ro(PAIRS).volatile(),
    /// Algorithm that limits the device's use of the storage.
    qos_algorithm_type: rw(Str),
    /// Parameters of that algorithm.
    qos_algorithm_params: rw(PAIRS),
    /// Supported algorithms.
    qos_supported_algorithms: ro(STRS),
    /// Metrics of the device.
    metrics: ro(Ref("VBD_metrics")).opt(),
}

messages! {
    /// Plugs the device into its running VM.
    VmAdmin Long plug(self: Ref("VBD"));
    /// Unplugs the device from its running VM.
    VmAdmin Long unplug(self: Ref("VBD"));
    /// Unplugs the device without the guest's cooperation.
    VmAdmin Long unplug_force(self: Ref("VBD"));
    /// Inserts a CD into the drive.
    VmOperator Long insert(vbd: Ref("VBD"), vdi: Ref("VDI"));
    /// Ejects the CD from the drive.
    VmOperator Long eject(vbd: Ref("VBD"));
    /// Sets the access mode of the guest.
    VmAdmin Short set_mode(self: Ref("VBD"), value: Enum(&enums::VBD_MODE));
    /// Fails if the device cannot be attached to its VM.
    VmAdmin Long assert_attachable(self: Ref("VBD"));
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("VBD", "A disk device of a machine"), Role::VmAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Short);
