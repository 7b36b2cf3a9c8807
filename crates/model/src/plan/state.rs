//! What the planner sees of one machine.

use std::cmp::Reverse;
use std::time::Duration;

use super::Deadlines;
use crate::domain::DomainSpec;
use crate::id::{Domid, SrId, VbdId, VdiId, VifId};
use crate::refusal::Refusal;
use crate::vbd::VbdKind;
use crate::vdi::automaton::{Access, VolumeState};
use crate::vm::PowerState;
use crate::vm::exits::{DomainExit, ExitPolicy};

/// One machine: what is recorded of it, and what is really there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// As recorded.
    pub power: PowerState,
    /// What is really there.
    pub domain: DomainState,
    /// The number for the next domain, which nobody else has or had.
    pub fresh: Domid,
    /// What the next domain is created with.
    pub spec: DomainSpec,
    /// Its disks and drives.
    pub disks: Vec<DiskState>,
    /// Its network interfaces.
    pub vifs: Vec<VifState>,
    /// What is done when the guest ends.
    pub after: ExitPolicy,
    /// How long each kind of step may take.
    pub deadlines: Deadlines,
}

/// What is there of a machine's domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// Nothing.
    Absent,
    /// No process, but a directory or a group of one.
    Remains,
    /// A process.
    There {
        /// Its number.
        domid: Domid,
        /// What it does.
        run: RunState,
    },
}

/// What a domain's process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It was made, and its CPUs have not run yet.
    Fresh,
    /// Its CPUs run.
    Running,
    /// Its CPUs stand, and can run on.
    Paused,
    /// Its guest has ended; the process stands still.
    Ended(DomainExit),
    /// It does not answer.
    Silent,
}

/// One disk or drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskState {
    /// Its slot.
    pub vbd: VbdId,
    /// Disk or drive.
    pub kind: VbdKind,
    /// Its position, 0 to 254.
    pub userdevice: u8,
    /// What is in it, or is to be; `None` for an empty drive.
    pub medium: Option<Medium>,
    /// How it is used.
    pub access: Access,
    /// The state of the volume for this slot, really.
    pub volume: VolumeState,
    /// Whether the guest has the disk, or the drive the medium, really.
    pub plugged: bool,
    /// How long the storage took for its last attach or detach; zero where that is not known.
    pub took: Duration,
}

/// The volume behind a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// Which.
    pub vdi: VdiId,
    /// Where it is.
    pub sr: SrId,
}

/// One network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VifState {
    /// Which.
    pub vif: VifId,
    /// Whether the host's end is there, really.
    pub created: bool,
    /// Whether the guest has it, really.
    pub plugged: bool,
}

impl DiskState {
    /// How slow its storage is, in powers of two: equals never take quite the same.
    fn slowness(&self) -> u32 {
        self.took.as_millis().max(1).ilog2()
    }
}

impl MachineState {
    /// Its disks and drives, the slow ones first, then by position. What takes long and begins last
    /// would be waited for alone.
    pub(super) fn slow_first(&self) -> Vec<DiskState> {
        let mut disks = self.disks.clone();
        disks.sort_by_key(|disk| (Reverse(disk.slowness()), disk.userdevice));
        disks
    }

    pub(super) fn disk(&self, vbd: VbdId) -> Result<DiskState, Refusal> {
        let found = self.disks.iter().find(|disk| disk.vbd == vbd).copied();
        found.ok_or_else(|| Refusal::NoSuchDevice(vbd.to_string()))
    }

    pub(super) fn vif(&self, vif: VifId) -> Result<VifState, Refusal> {
        let found = self.vifs.iter().find(|one| one.vif == vif).copied();
        found.ok_or_else(|| Refusal::NoSuchDevice(vif.to_string()))
    }
}
