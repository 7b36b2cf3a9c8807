//! Who is where, and with which weight.

use model::id::{SrId, Uuid, VmId};

use super::CgroupError;

/// A weight like that of any other group; version 1 calls it 1024 shares.
pub(super) const WEIGHT_USUAL: u32 = 100;
/// Highest weight that version 2 takes.
pub(super) const WEIGHT_MAX: u32 = 10_000;

/// What the group is called of those who serve NICs.
const SWITCH: &str = "switch";

/// How the slices divide the CPUs, 1 to 10,000; 100 is any other group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Of daemon and clients.
    pub control: u32,
    /// Of the processes that serve disks and NICs.
    pub datapath: u32,
    /// Of all guests together.
    pub guests: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { control: 1000, datapath: 200, guests: WEIGHT_USUAL }
    }
}

impl Weights {
    pub(super) fn of(self, slice: Slice) -> u32 {
        match slice {
            Slice::Control => self.control,
            Slice::Datapath => self.datapath,
            Slice::Guests => self.guests,
        }
    }

    /// Whether every weight is within bounds.
    ///
    /// # Errors
    /// [`CgroupError::Weight`]: the first that is not.
    pub fn check(self) -> Result<(), CgroupError> {
        for slice in Slice::ALL {
            let weight = self.of(slice);
            if !(1..=WEIGHT_MAX).contains(&weight) {
                return Err(CgroupError::Weight { slice: slice.name(), weight, most: WEIGHT_MAX });
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slice {
    Control,
    Datapath,
    Guests,
}

impl Slice {
    pub(super) const ALL: [Self; 3] = [Self::Control, Self::Datapath, Self::Guests];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Datapath => "datapath",
            Self::Guests => "guests",
        }
    }
}

/// A leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaf {
    /// The daemon.
    Daemon,
    /// Its clients on this host.
    Clients,
    /// The processes that serve the disks of a storage repository.
    Datapath(SrId),
    /// The processes that serve the NICs of all networks.
    Switch,
    /// A machine's QEMU.
    Guest(VmId),
}

impl Leaf {
    /// It goes with what somebody is served, or with a machine; the others are the daemon's.
    pub(super) fn is_of_machines(self) -> bool {
        self.slice() != Slice::Control
    }

    pub(super) fn slice(self) -> Slice {
        match self {
            Self::Daemon | Self::Clients => Slice::Control,
            Self::Datapath(_) | Self::Switch => Slice::Datapath,
            Self::Guest(_) => Slice::Guests,
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Daemon => "daemon".to_owned(),
            Self::Clients => "clients".to_owned(),
            Self::Datapath(sr) => sr.to_string(),
            Self::Switch => SWITCH.to_owned(),
            Self::Guest(vm) => vm.to_string(),
        }
    }

    /// The leaf of this name in a slice; `None`: it is not ours.
    pub(super) fn parse(slice: Slice, name: &str) -> Option<Self> {
        let id = || name.parse::<Uuid>().ok();
        match (slice, name) {
            (Slice::Control, "daemon") => Some(Self::Daemon),
            (Slice::Control, "clients") => Some(Self::Clients),
            (Slice::Control, _) => None,
            (Slice::Datapath, SWITCH) => Some(Self::Switch),
            (Slice::Datapath, _) => id().map(|id| Self::Datapath(SrId(id))),
            (Slice::Guests, _) => id().map(|id| Self::Guest(VmId(id))),
        }
    }
}
