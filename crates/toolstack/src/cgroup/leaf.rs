//! Leaves of the slices, and the weights of the slices.

use model::id::{SrId, Uuid, VmId};

use super::CgroupError;

/// Default weight of any group. Version 1 calls it 1024 shares.
pub(super) const WEIGHT_USUAL: u32 = 100;
/// Highest weight that version 2 accepts.
pub(super) const WEIGHT_MAX: u32 = 10_000;

/// Name of the group for processes that serve NICs.
const SWITCH: &str = "switch";

/// CPU weights of the slices, 1 to 10,000. Any other group has 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Weight of the daemon and its clients.
    pub control: u32,
    /// Weight of the processes that serve disks and NICs.
    pub datapath: u32,
    /// Weight of all guests together.
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

    /// Checks that every weight is in range.
    ///
    /// # Errors
    /// [`CgroupError::Weight`] for the first weight out of range.
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

/// Leaf of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaf {
    /// Leaf of the daemon.
    Daemon,
    /// Leaf of the daemon's clients on this host.
    Clients,
    /// Leaf of the processes that serve the disks of a storage repository.
    Datapath(SrId),
    /// Leaf of the processes that serve the NICs of all networks.
    Switch,
    /// Leaf of a machine's QEMU.
    Guest(VmId),
}

impl Leaf {
    /// Returns whether the leaf belongs to a machine, a storage repository or the switch. The other
    /// leaves belong to the daemon.
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

    /// Returns the leaf with this name in a slice; `None` if the name is not Ringway's.
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
