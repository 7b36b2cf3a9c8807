//! QEMU ids of a domain's devices. They contain UUIDs, so that a restarted daemon recognizes them.

use model::id::{Uuid, VbdId, VifId};

/// Id of the agent's serial port, and of its chardev.
pub(super) const AGENT: &str = "agent";

const DISK: &str = "disk-";
const NIC: &str = "nic-";
const DRIVE: &str = "drive-";
const HOST: &str = "host-";

/// Device of a guest that plans manage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Device {
    /// Disk.
    Disk(VbdId),
    /// Network interface.
    Nic(VifId),
    /// CD drive.
    Drive(VbdId),
}

impl Device {
    /// Returns QEMU's id of the device.
    pub(super) fn id(self) -> String {
        match self {
            Self::Disk(VbdId(uuid)) => format!("{DISK}{uuid}"),
            Self::Nic(VifId(uuid)) => format!("{NIC}{uuid}"),
            Self::Drive(VbdId(uuid)) => format!("{DRIVE}{uuid}"),
        }
    }

    /// Parses a device id, also at the end of a QOM path; `None` for a foreign id.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let name = name.rsplit('/').next().unwrap_or(name);
        let after = |prefix: &str| name.strip_prefix(prefix)?.parse::<Uuid>().ok();
        let disk = after(DISK).map(|uuid| Self::Disk(VbdId(uuid)));
        let nic = || after(NIC).map(|uuid| Self::Nic(VifId(uuid)));
        let drive = || after(DRIVE).map(|uuid| Self::Drive(VbdId(uuid)));
        disk.or_else(nic).or_else(drive)
    }

    /// Returns the id of the device's backends: the chardev to its datapath, and the netdev of an
    /// interface.
    pub(super) fn backend_id(self) -> String {
        format!("{HOST}{}", self.id())
    }

    /// Parses the id of a backend.
    pub(super) fn parse_backend_id(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(HOST)?)
    }

    /// Returns the node name of the medium in a drive. QEMU permits 31 characters: all but two
    /// bytes of the UUID.
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
            assert_eq!(Device::parse(&device.backend_id()), None);
            assert_eq!(Device::parse_backend_id(&device.backend_id()), Some(device));
            assert_eq!(Device::parse_backend_id(&device.id()), None);
        }
        for other in ["br0", "agent", "disk-", "disk-x", ""] {
            assert_eq!(Device::parse(other), None, "{other}");
        }
        let medium = Device::medium(VbdId(uuid));
        assert_eq!(medium, "cd456789ab4def8123456789abcdef");
        assert!(medium.len() <= 31);
    }
}
