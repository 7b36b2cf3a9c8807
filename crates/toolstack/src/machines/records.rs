//! What a machine's owner reads from the records and writes into them.

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

/// A machine as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRecord {
    /// Its power state.
    pub power: PowerState,
    /// What its next domain is created with.
    pub spec: DomainSpec,
    /// Its disks and drives.
    pub disks: Vec<DiskRecord>,
    /// Its interfaces.
    pub vifs: Vec<VifRecord>,
    /// What is done when its guest ends.
    pub after: ExitPolicy,
    /// Nobody has asked for its end: somebody follows [`DomainEvent::Ended`], and does what is set
    /// for that. A settle leaves it to them.
    ///
    /// [`DomainEvent::Ended`]: crate::hv::DomainEvent::Ended
    pub followed: bool,
    /// How long its steps may take.
    pub deadlines: Deadlines,
}

/// A disk or a drive as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskRecord {
    /// Its slot.
    pub vbd: VbdId,
    /// Disk or drive.
    pub kind: VbdKind,
    /// Its number, 0 to 254.
    pub userdevice: u8,
    /// How it is used.
    pub access: Access,
    /// What is in it; nothing in an empty drive.
    pub source: Option<VolumeRef>,
    /// The guest has it, as far as is recorded.
    pub plugged: bool,
    /// It may be booted from, in this order.
    pub boot_index: Option<u16>,
    /// What its guest may do with it.
    pub limits: DiskLimits,
    /// How it is served.
    pub tuning: Tuning,
}

/// The volume in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRef {
    /// Which.
    pub vdi: VdiId,
    /// Where.
    pub sr: SrId,
    /// The type of that SR.
    pub sr_kind: String,
}

/// An interface as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VifRecord {
    /// Which.
    pub vif: VifId,
    /// Its number, 0 to 6.
    pub device: u8,
    /// Its address.
    pub mac: String,
    /// The bridge of its network.
    pub bridge: String,
    /// Longest packet of its network, in bytes.
    pub mtu: u32,
    /// Pairs of queues; as many as its guest has CPUs, and no more than the host, where nothing is
    /// said.
    pub queues: Option<u16>,
    /// What it may do.
    pub limits: NicLimits,
    /// The guest has it, as far as is recorded.
    pub plugged: bool,
    /// It may be booted from, in this order.
    pub boot_index: Option<u16>,
}

/// The records, for those who carry out plans. Neither call waits.
pub trait Records: fmt::Debug + Send + Sync {
    /// Every machine that could have something: no templates.
    fn machines(&self) -> Vec<VmId>;

    /// A machine.
    ///
    /// # Errors
    /// It is gone, or something in its record cannot be carried out.
    fn machine(&self, vm: VmId) -> Result<MachineRecord, Refusal>;

    /// What is set of a disk that may change while an operation goes on; nothing for one that is gone.
    fn disk_settings(&self, vbd: VbdId) -> Option<(DiskLimits, Tuning)>;

    /// What an interface may do, which may change while an operation goes on; nothing for one that is
    /// gone.
    fn vif_limits(&self, vif: VifId) -> Option<NicLimits>;

    /// What has become of a machine, in one change. A machine that is gone is passed over.
    fn record_effects(&self, vm: VmId, effects: &[Effect]);
}
