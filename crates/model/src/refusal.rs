//! Reasons why an operation may not begin.
//!
//! A refusal uses the terms of this crate. The code that answers a client adds the references of
//! the objects and chooses the error code.

use crate::sr::SrOp;
use crate::vbd::VbdOp;
use crate::vdi::VdiOp;
use crate::vif::VifOp;
use crate::vm::{PowerState, VmOp};

/// Guest ability that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Shut down or reboot on request.
    Shutdown,
    /// Accept and release disks while it runs.
    HotplugVbd,
    /// Accept and release network interfaces while it runs.
    HotplugVif,
}

impl Feature {
    /// Returns the name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shutdown => "clean shutdown and reboot",
            Self::HotplugVbd => "VBD hotplug",
            Self::HotplugVif => "VIF hotplug",
        }
    }
}

/// A running operation and the kind of object that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OngoingOp {
    /// Operation on a machine.
    Vm(VmOp),
    /// Operation on a machine's disk slot.
    Vbd(VbdOp),
    /// Operation on a disk.
    Vdi(VdiOp),
    /// Operation on a storage repository.
    Sr(SrOp),
    /// Operation on a machine's network interface.
    Vif(VifOp),
}

impl OngoingOp {
    /// Returns the name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vm(op) => op.name(),
            Self::Vbd(op) => op.name(),
            Self::Vdi(op) => op.name(),
            Self::Sr(op) => op.name(),
            Self::Vif(op) => op.name(),
        }
    }
}

/// Reason why an operation may not begin now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A user has blocked the operation on this machine.
    #[error("the operation is blocked on this machine: {reason}")]
    Blocked {
        /// Reason that the user gave with the block.
        reason: String,
    },
    /// The machine's power state does not allow the operation.
    #[error("the machine is {}, this needs {}", .actual.error_name(), states(.expected))]
    BadPowerState {
        /// All power states that allow it.
        expected: &'static [PowerState],
        /// Current power state.
        actual: PowerState,
    },
    /// A conflicting operation is running; see [`Refusal::passes`].
    #[error("{} is in progress", .op.name())]
    OtherOperation {
        /// The running operation.
        op: OngoingOp,
    },
    /// The operation is not for templates.
    #[error("the machine is a template")]
    IsTemplate,
    /// The operation is only for templates.
    #[error("the machine is no template")]
    NotTemplate,
    /// The operation is not for snapshots.
    #[error("the machine is a snapshot")]
    IsSnapshot,
    /// The operation is only for snapshots.
    #[error("the machine is no snapshot")]
    NotSnapshot,
    /// The operation is not for the control domain.
    #[error("the machine is the control domain")]
    IsControlDomain,
    /// The guest denies the feature, or has not reported it.
    #[error("the guest does not offer {}", .0.name())]
    LacksFeature(Feature),
    /// The guest has none of the required drivers.
    #[error("the required guest drivers are not loaded")]
    MissingDrivers,
    /// The device is already plugged.
    #[error("the device is attached already")]
    AlreadyAttached,
    /// The device is not plugged.
    #[error("the device is not attached")]
    AlreadyDetached,
    /// The device is marked as not unpluggable.
    #[error("the device is marked as not unpluggable")]
    NotUnpluggable,
    /// The drive has no medium.
    #[error("the drive is empty")]
    Empty,
    /// The drive has a medium.
    #[error("the drive is not empty")]
    NotEmpty,
    /// The device is not a drive with a removable medium.
    #[error("the device has no removable medium")]
    NotRemovable,
    /// Another user of the disk prevents the operation.
    #[error("the disk is in use")]
    VdiInUse,
    /// The disk is read-only.
    #[error("the disk is read-only")]
    VdiReadOnly,
    /// The storage has lost the disk.
    #[error("the disk is missing from its storage repository")]
    VdiMissing,
    /// The storage repository is not attached to this host.
    #[error("the storage repository is not attached; plug its PBD")]
    SrNotAttached,
    /// The storage repository is still attached to this host.
    #[error("the storage repository is attached; unplug its PBD")]
    SrAttached,
    /// No PBD connects this host with the storage repository.
    #[error("the storage repository has no PBD")]
    SrNoPbd,
    /// The storage repository contains disks.
    #[error("the storage repository is not empty; destroy its disks or forget it")]
    SrNotEmpty,
    /// The type of the storage repository does not have the operation.
    #[error("storage of this type does not have this operation")]
    Unsupported,
    /// Another device of the machine has this number.
    #[error("device {0} exists already")]
    DeviceTaken(u8),
    /// No device has this number or name.
    #[error("`{0}` is no device number of a machine, or none is free")]
    NoSuchDevice(String),
    /// The host has too little free memory for the machine.
    #[error("{needed_bytes} bytes of memory are needed, {available_bytes} are available")]
    NotEnoughMemory {
        /// Bytes that the machine needs.
        needed_bytes: u64,
        /// Bytes that the host has available.
        available_bytes: u64,
    },
    /// Another reason, as a sentence.
    #[error("{0}")]
    NotAllowed(String),
    /// Ringway does not implement the operation.
    #[error("this operation is not implemented")]
    NotImplemented,
}

impl Refusal {
    /// Returns a refusal because of a running operation.
    pub(crate) fn beside<T>(op: OngoingOp) -> Result<T, Self> {
        Err(Self::OtherOperation { op })
    }

    /// Returns whether the reason passes by itself, so that a caller may wait and retry. Every
    /// other refusal is final.
    pub fn passes(&self) -> bool {
        matches!(self, Self::OtherOperation { .. })
    }
}

/// Formats power states for error parameters: `halted, suspended`.
pub fn states(of: &[PowerState]) -> String {
    of.iter().map(|state| state.error_name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_cause() {
        let expected = &[PowerState::Halted, PowerState::Suspended];
        let bad = Refusal::BadPowerState { expected, actual: PowerState::Running };
        assert_eq!(bad.to_string(), "the machine is running, this needs halted, suspended");
        let other = Refusal::OtherOperation { op: OngoingOp::Vm(VmOp::CleanShutdown) };
        assert_eq!(other.to_string(), "clean_shutdown is in progress");
        let lacks = Refusal::LacksFeature(Feature::HotplugVif);
        assert_eq!(lacks.to_string(), "the guest does not offer VIF hotplug");
        assert_eq!(Refusal::DeviceTaken(7).to_string(), "device 7 exists already");
        assert!(other.passes());
        for stays in [bad, lacks, Refusal::VdiInUse, Refusal::NotImplemented] {
            assert!(!stays.passes(), "{stays}");
        }
    }

    #[test]
    fn an_operation_under_way_has_its_own_name() {
        for (op, name) in [
            (OngoingOp::Vm(VmOp::HardReboot), "hard_reboot"),
            (OngoingOp::Vbd(VbdOp::UnplugForce), "unplug_force"),
            (OngoingOp::Vdi(VdiOp::ResizeOnline), "resize_online"),
            (OngoingOp::Sr(SrOp::VdiCreate), "vdi_create"),
            (OngoingOp::Vif(VifOp::Plug), "plug"),
        ] {
            assert_eq!(op.name(), name);
        }
    }
}
