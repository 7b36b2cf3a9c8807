//! Disks of the demo.

use model::domain::serial;
use model::id::VdiId;

/// A disk by its purpose, in the order in which the guest has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Disk {
    /// A file system.
    Data,
    /// Written through several queues, while the process that serves it is killed.
    Multi,
    /// Only read.
    Golden,
    /// The guest's script.
    Script,
    /// Plugged while the guest runs.
    Late,
}

impl Disk {
    /// All disks.
    pub(super) const ALL: [Self; 5] =
        [Self::Data, Self::Multi, Self::Golden, Self::Script, Self::Late];

    /// Returns the name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Multi => "multi",
            Self::Golden => "golden",
            Self::Script => "script",
            Self::Late => "late",
        }
    }

    /// Returns the name with a short description.
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

    /// Returns the size in bytes. Writable disks are sparse.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Data | Self::Multi => 128 << 20,
            Self::Golden => 16 << 20,
            Self::Script => 16 << 10,
            Self::Late => 64 << 20,
        }
    }

    /// Returns whether the guest cannot write to it.
    pub(super) fn read_only(self) -> bool {
        matches!(self, Self::Golden | Self::Script)
    }

    /// Returns the device number in the machine.
    pub(super) fn userdevice(self) -> u8 {
        // The cast is lossless: there are few variants.
        self as u8
    }

    /// Returns the serial number that the guest sees for this volume.
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
