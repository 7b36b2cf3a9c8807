//! What a domain's devices are called in QEMU: by their UUIDs, so that a daemon that was away finds
//! them again.

use model::id::{Uuid, VbdId, VifId};

/// The serial port that the guest's agent has, and its other end.
pub(super) const AGENT: &str = "agent";

const DISK: &str = "disk-";
const NIC: &str = "nic-";
const DRIVE: &str = "drive-";
const HOST: &str = "host-";

/// One device of a guest that a plan knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Device {
    /// A disk.
    Disk(VbdId),
    /// A network interface.
    Nic(VifId),
    /// A CD drive.
    Drive(VbdId),
}

impl Device {
    /// QEMU's name for it.
    pub(super) fn id(self) -> String {
        match self {
            Self::Disk(VbdId(uuid)) => format!("{DISK}{uuid}"),
            Self::Nic(VifId(uuid)) => format!("{NIC}{uuid}"),
            Self::Drive(VbdId(uuid)) => format!("{DRIVE}{uuid}"),
        }
    }

    /// The device of this name, or at the end of this path; nothing if it is none of ours.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let name = name.rsplit('/').next().unwrap_or(name);
        let after = |prefix: &str| name.strip_prefix(prefix)?.parse::<Uuid>().ok();
        let disk = after(DISK).map(|uuid| Self::Disk(VbdId(uuid)));
        let nic = || after(NIC).map(|uuid| Self::Nic(VifId(uuid)));
        let drive = || after(DRIVE).map(|uuid| Self::Drive(VbdId(uuid)));
        disk.or_else(nic).or_else(drive)
    }

    /// The host's end of it: the connection to its datapath, and what QEMU makes of an interface's.
    pub(super) fn host_end(self) -> String {
        format!("{HOST}{}", self.id())
    }

    /// The device whose host's end has this name.
    pub(super) fn of_host_end(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(HOST)?)
    }

    /// The medium in a drive. QEMU gives such a name 31 characters: all but two bytes of the UUID.
    pub(super) fn medium(vbd: VbdId) -> String {
        let digits: String = vbd.0.bytes().iter().skip(2).map(|b| format!("{b:02x}")).collect();
        format!("cd{digits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_device() {
        let uuid: Uuid = "01234567-89ab-4def-8123-456789abcdef".parse().unwrap();
        for device in
            [Device::Disk(VbdId(uuid)), Device::Nic(VifId(uuid)), Device::Drive(VbdId(uuid))]
        {
            assert_eq!(Device::parse(&device.id()), Some(device));
            let path = format!("/machine/peripheral/{}", device.id());
            assert_eq!(Device::parse(&path), Some(device));
            assert_eq!(Device::parse(&device.host_end()), None);
            assert_eq!(Device::of_host_end(&device.host_end()), Some(device));
            assert_eq!(Device::of_host_end(&device.id()), None);
        }
        for other in ["br0", "agent", "disk-", "disk-x", ""] {
            assert_eq!(Device::parse(other), None, "{other}");
        }
        let medium = Device::medium(VbdId(uuid));
        assert_eq!(medium, "cd456789ab4def8123456789abcdef");
        assert!(medium.len() <= 31);
    }
}
