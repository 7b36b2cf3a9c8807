//! Records that the operation loop reads and updates.

use std::fmt;

use model::domain::DomainSpec;
use model::id::{SrId, VbdId, VdiId, VifId, VmId};
use model::nic::NicLimits;
use model::plan::{Deadlines, Effect};
use model::refusal::Refusal;
use model::vbd::{DiskLimits, Tuning, VbdKind};
use model::vdi::automaton::Access;
use model::vm::PowerState;
use model::vm::exits::ExitPolicy;

/// Record of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRecord {
    /// Power state.
    pub power: PowerState,
    /// Specification of its next domain.
    pub spec: DomainSpec,
    /// Disks and drives.
    pub disks: Vec<DiskRecord>,
    /// Network interfaces.
    pub vifs: Vec<VifRecord>,
    /// Actions after the guest ends.
    pub after: ExitPolicy,
    /// True if no operation has requested the end of the guest. Then the follower of
    /// [`DomainEvent::Ended`] takes the configured action, and a reconciliation leaves it alone.
    ///
    /// [`DomainEvent::Ended`]: crate::hv::DomainEvent::Ended
    pub followed: bool,
    /// Deadlines of steps.
    pub deadlines: Deadlines,
}

/// Record of a disk or drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRecord {
    /// Slot.
    pub vbd: VbdId,
    /// Disk or drive.
    pub kind: VbdKind,
    /// Device number, 0 to 254.
    pub userdevice: u8,
    /// Access mode.
    pub access: Access,
    /// Whether the volume is reset when the machine boots.
    pub resets: bool,
    /// Volume in the slot; `None` for an empty drive.
    pub source: Option<VolumeRef>,
    /// True if the guest has the device, according to the record.
    pub plugged: bool,
    /// Position in the boot order, if the guest may boot from it.
    pub boot_index: Option<u16>,
    /// Limits of the guest's I/O.
    pub limits: DiskLimits,
    /// Settings of the datapath.
    pub tuning: Tuning,
}

/// Volume of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRef {
    /// Id of the volume.
    pub vdi: VdiId,
    /// SR of the volume.
    pub sr: SrId,
    /// Type of that SR.
    pub sr_kind: String,
}

/// Record of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VifRecord {
    /// Id of the interface.
    pub vif: VifId,
    /// Device number, 0 to 6.
    pub device: u8,
    /// MAC address.
    pub mac: String,
    /// Bridge of its network.
    pub bridge: String,
    /// MTU of its network, in bytes.
    pub mtu: u32,
    /// Number of queue pairs. By default it is the guest's CPUs, but at most the host's CPUs.
    pub queues: Option<u16>,
    /// Limits of the interface.
    pub limits: NicLimits,
    /// True if the guest has the interface, according to the record.
    pub plugged: bool,
    /// Position in the boot order, if the guest may boot from it.
    pub boot_index: Option<u16>,
}

/// Access to the records. No call waits.
pub trait Records: fmt::Debug + Send + Sync {
    /// Returns every machine that may have resources on the host. Templates do not.
    fn machines(&self) -> Vec<VmId>;

    /// Returns a machine's record.
    ///
    /// # Errors
    /// The machine does not exist, or its record contains a value that cannot be executed.
    fn machine(&self, vm: VmId) -> Result<MachineRecord, Refusal>;

    /// Returns the present settings of a disk, which may change during an operation; `None` if it
    /// does not exist.
    fn disk_settings(&self, vbd: VbdId) -> Option<(DiskLimits, Tuning)>;

    /// Returns the present limits of an interface, which may change during an operation; `None` if
    /// it does not exist.
    fn vif_limits(&self, vif: VifId) -> Option<NicLimits>;

    /// Records the effects on a machine in one change. Ignores a machine that does not exist.
    fn record_effects(&self, vm: VmId, effects: &[Effect]);
}
