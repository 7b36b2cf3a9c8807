//! The demo's disks.

use model::domain::serial;
use model::id::VdiId;

/// A disk by what it is for. The guest has them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Disk {
    /// A file system.
    Data,
    /// Written by several queues, while the process that serves it is killed.
    Multi,
    /// Read, and never written.
    Golden,
    /// What the guest is to do.
    Script,
    /// Plugged while the guest runs.
    Late,
}

impl Disk {
    /// All of them.
    pub(super) const ALL: [Self; 5] =
        [Self::Data, Self::Multi, Self::Golden, Self::Script, Self::Late];

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Multi => "multi",
            Self::Golden => "golden",
            Self::Script => "script",
            Self::Late => "late",
        }
    }

    /// Its name with a few words.
    pub(super) fn title(self) -> String {
        let words = match self {
            Self::Data => "ext4",
            Self::Multi => "several queues",
            Self::Golden => "read-only",
            Self::Script => "the guest's script",
            Self::Late => "plugged while it ran",
        };
        format!("{} ({words})", self.name())
    }

    /// Its size in bytes. Those that are written are sparse.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Data | Self::Multi => 128 << 20,
            Self::Golden => 16 << 20,
            Self::Script => 16 << 10,
            Self::Late => 64 << 20,
        }
    }

    /// The guest cannot write to it.
    pub(super) fn read_only(self) -> bool {
        matches!(self, Self::Golden | Self::Script)
    }

    /// Its number in the machine.
    pub(super) fn userdevice(self) -> u8 {
        // As many as there are variants.
        self as u8
    }

    /// What the guest sees as its serial number, with this volume in it.
    pub(super) fn serial(self, volume: VdiId) -> String {
        serial(self.userdevice(), volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_number_of_its_own() {
        for (number, disk) in (0..).zip(Disk::ALL) {
            assert_eq!(disk.userdevice(), number, "{disk:?}");
        }
    }
}
