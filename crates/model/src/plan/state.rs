//! State of a machine that the planner reads.

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

/// A machine: its record, and its observed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// Recorded power state.
    pub power: PowerState,
    /// Observed domain.
    pub domain: DomainState,
    /// Number for the next domain, never used before.
    pub fresh: Domid,
    /// Specification of the next domain.
    pub spec: DomainSpec,
    /// Disks and drives.
    pub disks: Vec<DiskState>,
    /// Network interfaces.
    pub vifs: Vec<VifState>,
    /// Exit policy.
    pub after: ExitPolicy,
    /// Deadlines of each kind of step.
    pub deadlines: Deadlines,
}

/// Observed state of a machine's domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// No domain.
    Absent,
    /// No process, but the directory or control group of one.
    Remains,
    /// A process.
    Present {
        /// Number of the domain.
        domid: Domid,
        /// State of its process.
        run: RunState,
    },
}

/// State of a domain's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Created; its CPUs have not run yet.
    Created,
    /// Its CPUs run.
    Running,
    /// Its CPUs are stopped and can run again.
    Paused,
    /// Its guest has ended; the process still exists.
    Ended(DomainExit),
    /// The process does not answer.
    Unresponsive,
}

/// A disk or drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskState {
    /// Disk slot.
    pub vbd: VbdId,
    /// Disk or drive.
    pub kind: VbdKind,
    /// Position, 0 to 254.
    pub userdevice: u8,
    /// Medium in the slot, or to be inserted; `None` for an empty drive.
    pub medium: Option<Medium>,
    /// Access mode of the slot.
    pub access: Access,
    /// Whether the volume is reset when the machine boots.
    pub resets: bool,
    /// Observed state of the volume for this slot.
    pub volume: VolumeState,
    /// Whether the guest has the disk, or the drive has the medium, as observed.
    pub plugged: bool,
    /// Duration of the storage's last attach or detach; zero if unknown.
    pub took: Duration,
}

/// The volume behind a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// Disk.
    pub vdi: VdiId,
    /// Storage repository of the disk.
    pub sr: SrId,
}

/// A network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VifState {
    /// Interface.
    pub vif: VifId,
    /// Whether the host's end exists, as observed.
    pub created: bool,
    /// Whether the guest has the interface, as observed.
    pub plugged: bool,
}

impl DiskState {
    /// Returns the storage duration as a power of two, because equal disks vary a little.
    fn slowness(&self) -> u32 {
        self.took.as_millis().max(1).ilog2()
    }
}

impl MachineState {
    /// Returns the disks and drives: slow ones first, then by position. If a slow one began last,
    /// the whole plan would wait for it alone.
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
