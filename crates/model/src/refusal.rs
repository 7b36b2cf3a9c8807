//! Why an operation may not begin.
//!
//! A refusal says what is wrong in the words of this crate. Whoever answers a client adds the
//! references of the objects and makes the error code of it.

use crate::sr::SrOp;
use crate::vbd::VbdOp;
use crate::vdi::VdiOp;
use crate::vif::VifOp;
use crate::vm::{PowerState, VmOp};

/// Something that a guest must be able to do for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Shut down or reboot when it is asked to.
    Shutdown,
    /// Take and give back disks while it runs.
    HotplugVbd,
    /// Take and give back network interfaces while it runs.
    HotplugVif,
}

impl Feature {
    /// As messages write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shutdown => "clean shutdown and reboot",
            Self::HotplugVbd => "VBD hotplug",
            Self::HotplugVif => "VIF hotplug",
        }
    }
}

/// An operation that runs, and the kind of object that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OngoingOp {
    /// Of a machine.
    Vm(VmOp),
    /// Of a machine's disk slot.
    Vbd(VbdOp),
    /// Of a disk.
    Vdi(VdiOp),
    /// Of a storage repository.
    Sr(SrOp),
    /// Of a machine's network interface.
    Vif(VifOp),
}

impl OngoingOp {
    /// The operation's name.
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

/// Why an operation may not begin now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody has blocked it on this machine.
    #[error("the operation is blocked on this machine: {reason}")]
    Blocked {
        /// As it was given with the block.
        reason: String,
    },
    /// The machine is not in a power state in which this can be done.
    #[error("the machine is {}, this needs {}", .actual.error_name(), states(.expected))]
    BadPowerState {
        /// All the states in which it can be done.
        expected: &'static [PowerState],
        /// The state it is in.
        actual: PowerState,
    },
    /// Something else that it cannot run beside is under way; see [`Refusal::passes`].
    #[error("{} is in progress", .op.name())]
    OtherOperation {
        /// That operation.
        op: OngoingOp,
    },
    /// Not done to templates.
    #[error("the machine is a template")]
    IsTemplate,
    /// Done to templates only.
    #[error("the machine is no template")]
    NotTemplate,
    /// Not done to snapshots.
    #[error("the machine is a snapshot")]
    IsSnapshot,
    /// Done to snapshots only.
    #[error("the machine is no snapshot")]
    NotSnapshot,
    /// Not done to the control domain.
    #[error("the machine is the control domain")]
    IsControlDomain,
    /// The guest has said that it cannot, or has not said that it can.
    #[error("the guest does not offer {}", .0.name())]
    LacksFeature(Feature),
    /// The guest has none of the drivers that this needs.
    #[error("the guest has not loaded the drivers that this needs")]
    MissingDrivers,
    /// The device is plugged already.
    #[error("the device is attached already")]
    AlreadyAttached,
    /// The device is not plugged.
    #[error("the device is not attached")]
    AlreadyDetached,
    /// The device is marked as one that stays.
    #[error("the device is marked as not unpluggable")]
    NotUnpluggable,
    /// There is no medium in the drive.
    #[error("the drive is empty")]
    Empty,
    /// There is a medium in the drive.
    #[error("the drive is not empty")]
    NotEmpty,
    /// The device is no drive whose medium can be changed.
    #[error("the device has no removable medium")]
    NotRemovable,
    /// Somebody uses the disk in a way that forbids this.
    #[error("the disk is in use")]
    VdiInUse,
    /// The disk is not written to.
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
    /// Nothing connects this host with the storage repository.
    #[error("the storage repository has no PBD")]
    SrNoPbd,
    /// There are disks in the storage repository.
    #[error("the storage repository is not empty; destroy its disks or forget it")]
    SrNotEmpty,
    /// Another device of the machine has this number.
    #[error("device {0} exists already")]
    DeviceTaken(u8),
    /// No device has this number or name.
    #[error("`{0}` is no device that a machine can have, or none is free")]
    NoSuchDevice(String),
    /// The host has too little memory for the machine.
    #[error("{needed_bytes} bytes of memory are needed, {available_bytes} are available")]
    NotEnoughMemory {
        /// Bytes that the machine would take.
        needed_bytes: u64,
        /// Bytes that the host can give.
        available_bytes: u64,
    },
    /// Something else, said in a sentence.
    #[error("{0}")]
    NotAllowed(String),
    /// Ringway does not do this.
    #[error("this operation is not implemented")]
    NotImplemented,
}

impl Refusal {
    /// Refused because of an operation that is under way.
    pub(crate) fn beside<T>(op: OngoingOp) -> Result<T, Self> {
        Err(Self::OtherOperation { op })
    }

    /// Whether it passes by itself: a caller may wait and ask again. Every other refusal is an
    /// answer at once.
    pub fn passes(&self) -> bool {
        matches!(self, Self::OtherOperation { .. })
    }
}

/// `halted, suspended`: as error parameters list power states.
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
