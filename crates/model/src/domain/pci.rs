//! PCI addresses of a domain's devices: each depends on the device number alone.
//!
//! A guest names devices by their address. So the address of the third disk is the same at every
//! start and in every machine, even if the first two are gone. The root bus of i440fx:
//!
//! | slots | use |
//! |---|---|
//! | 0, 1 | host bridge; ISA, IDE and power management |
//! | 2 | display, or empty |
//! | 3, 4, 5 | agent's port, CD drives, random numbers |
//! | 6 to 13 | bridges 0 to 7 |
//! | 14 to 20 | disks 0 to 6 |
//! | 21 to 27 | interfaces 0 to 6 |
//! | 28 to 31 | free |
//!
//! Disk 7 is in slot 1 of bridge 0, disk 38 in slot 1 of bridge 1, disk 254 in slot 31 of bridge 7.
//! A bridge's own hot-plug controller uses its slot 0. All bridges exist in every domain, because
//! ACPI cannot plug one later.

use std::fmt;

/// Maximum number of disks of a machine: `userdevice` 0 to 254.
pub const MAX_DISKS: u8 = 255;
/// Maximum number of interfaces of a machine, as in XenServer 7.0.
pub const MAX_VIFS: u8 = 7;
/// Maximum number of CD drives: ports of one AHCI controller, whose drives cannot be plugged later.
pub const MAX_CDS: u8 = 6;
/// Number of disks whose queues have interrupts of their own (MSI-X). With QEMU's default number of
/// vectors for each of 255 disks, a guest runs out of them and the last disks do not appear. The
/// other disks have one queue and share the interrupt lines of their bus.
pub const MSIX_DISKS: u8 = 32;

/// Number of bridges. SeaBIOS reserves a window for each and fails at the ninth.
const BRIDGE_COUNT: u8 = 8;
const FIRST_BRIDGE_SLOT: u8 = 6;
const FIRST_DISK_SLOT: u8 = 14;
const ROOT_DISKS: u8 = 7;
const FIRST_VIF_SLOT: u8 = 21;
/// Number of disks behind one bridge, from slot 1 on.
const BRIDGE_DISKS: u8 = 31;

/// A PCI bus of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bus {
    /// The root bus of the machine type.
    Root,
    /// The bus behind a bridge, 0 to 7.
    Bridge(u8),
}

/// Formats the bus for QEMU: `pci.0`, `br3`.
impl fmt::Display for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("pci.0"),
            Self::Bridge(number) => write!(f, "br{number}"),
        }
    }
}

/// A PCI address. The function is 0, because only whole slots can be plugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciSlot {
    /// Bus of the slot.
    pub bus: Bus,
    /// Slot number, 0 to 31.
    pub slot: u8,
}

impl PciSlot {
    const fn root(slot: u8) -> Self {
        Self { bus: Bus::Root, slot }
    }
}

/// Address of a disk, and its limits there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSlot {
    /// PCI address.
    pub pci_slot: PciSlot,
    /// Maximum number of queues; the number of virtual CPUs limits them as well.
    pub most_queues: u16,
    /// Number of MSI-X vectors: `None` for QEMU's default, 0 for a shared interrupt line.
    pub vectors: Option<u16>,
}

/// Slot of the display, if there is one.
pub const DISPLAY: PciSlot = PciSlot::root(2);
/// Slot of the serial controller with the guest agent's port.
pub const AGENT_PORT: PciSlot = PciSlot::root(3);
/// Slot of the controller of the CD drives.
pub const AHCI: PciSlot = PciSlot::root(4);
/// Slot of the random number generator.
pub const RANDOM: PciSlot = PciSlot::root(5);

/// Returns the bus behind every bridge, and the bridge's slot.
pub fn bridges() -> impl Iterator<Item = (Bus, PciSlot)> {
    (0..BRIDGE_COUNT).map(|number| (Bus::Bridge(number), PciSlot::root(FIRST_BRIDGE_SLOT + number)))
}

/// Returns the address of a disk, or `None` from [`MAX_DISKS`] on.
pub fn disk(userdevice: u8) -> Option<DiskSlot> {
    let pci_slot = match userdevice.checked_sub(ROOT_DISKS) {
        None => PciSlot::root(FIRST_DISK_SLOT + userdevice),
        Some(behind) => {
            PciSlot { bus: Bus::Bridge(behind / BRIDGE_DISKS), slot: 1 + behind % BRIDGE_DISKS }
        }
    };
    // Depends on the number, not on the count: plugging another disk changes nothing.
    let (most_queues, vectors) =
        if userdevice < MSIX_DISKS { (crate::spec::MAX_QUEUES, None) } else { (1, Some(0)) };
    (userdevice < MAX_DISKS).then_some(DiskSlot { pci_slot, most_queues, vectors })
}

/// Returns the address of an interface, or `None` from [`MAX_VIFS`] on.
pub fn vif(device: u8) -> Option<PciSlot> {
    (device < MAX_VIFS).then(|| PciSlot::root(FIRST_VIF_SLOT + device))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shown(userdevice: u8) -> String {
        let pci_slot = disk(userdevice).unwrap().pci_slot;
        format!("{} {}", pci_slot.bus, pci_slot.slot)
    }

    #[test]
    fn all_places_differ_and_none_is_past_the_end() {
        let fixed = [DISPLAY, AGENT_PORT, AHCI, RANDOM, PciSlot::root(0), PciSlot::root(1)];
        let disks = (0..MAX_DISKS).map(|number| disk(number).unwrap().pci_slot);
        let vifs = (0..MAX_VIFS).map(|number| vif(number).unwrap());
        let bridges = bridges().map(|(_, pci_slot)| pci_slot);
        let all: Vec<_> = fixed.into_iter().chain(disks).chain(vifs).chain(bridges).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(all.len(), 6 + 255 + 7 + 8);
        for pci_slot in all {
            assert!(pci_slot.slot < 32, "{pci_slot:?}");
            assert!(
                pci_slot.bus == Bus::Root || pci_slot.slot > 0,
                "{pci_slot:?}: the bridge's own"
            );
        }
        assert_eq!((disk(255), vif(7)), (None, None));
    }

    #[test]
    fn every_bus_exists() {
        let there: BTreeSet<_> = bridges().map(|(bus, _)| bus).chain([Bus::Root]).collect();
        let used: BTreeSet<_> = (0..MAX_DISKS).map(|one| disk(one).unwrap().pci_slot.bus).collect();
        assert_eq!(there, used);
    }

    #[test]
    fn places_are_those_that_guests_know() {
        let places = [0, 6, 7, 37, 38, 254].map(shown);
        assert_eq!(places, ["pci.0 14", "pci.0 20", "br0 1", "br0 31", "br1 1", "br7 31"]);
        assert_eq!([vif(0), vif(6)].map(|one| one.unwrap().slot), [21, 27]);
        let first = bridges().next().unwrap();
        assert_eq!((first.0.to_string().as_str(), first.1), ("br0", PciSlot::root(6)));
    }

    #[test]
    fn from_the_thirty_third_on_there_is_one_queue_and_no_vector() {
        for userdevice in 0..MAX_DISKS {
            let DiskSlot { most_queues, vectors, .. } = disk(userdevice).unwrap();
            assert_eq!(most_queues == 1, userdevice >= 32, "{userdevice}");
            assert_eq!(vectors, (userdevice >= 32).then_some(0), "{userdevice}");
        }
    }
}
