//! PCI addresses of a machine's devices: a pure function of their position.
//!
//! A guest names devices by their PCI address. So the address of the third disk must be the same at
//! every start, even if the first two are gone. Disks use the slots [`FIRST_DISK_SLOT`] to
//! [`LAST_DISK_SLOT`] of q35's root bus: first function 0 of each slot, then function 1 of each,
//! and so on.

use std::fmt;

/// First slot for disks. q35 has its host bridge in slot 0. Slots 1 to 3 are for devices that a
/// machine has once (network, agent port, random numbers).
pub const FIRST_DISK_SLOT: u8 = 4;
/// Last slot for disks. q35 has its ISA bridge, SATA and SMBus in slot 31.
pub const LAST_DISK_SLOT: u8 = 0x1b;
/// Number of functions in a PCI slot.
const FUNCTIONS: usize = 8;
/// Number of slots for disks.
const DISK_SLOTS: usize = (LAST_DISK_SLOT - FIRST_DISK_SLOT) as usize + 1;
/// Maximum number of disks of one machine.
pub const MAX_DISKS: usize = DISK_SLOTS * FUNCTIONS;

/// A PCI address on the root bus, displayed for QEMU's `addr=`: `0x4.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Slot (device number), 0 to 31.
    pub slot: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}.{}", self.slot, self.function)
    }
}

/// Returns the address of the disk at `position` (from 0), or `None` from [`MAX_DISKS`] on.
pub fn disk_address(position: usize) -> Option<PciAddress> {
    if position >= MAX_DISKS {
        return None;
    }
    let slot = u8::try_from(position % DISK_SLOTS).ok()?;
    let function = u8::try_from(position / DISK_SLOTS).ok()?;
    Some(PciAddress { slot: FIRST_DISK_SLOT + slot, function })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn addresses_are_fixed_by_position() {
        assert_eq!(disk_address(0).unwrap().to_string(), "0x4.0");
        assert_eq!(disk_address(1).unwrap().to_string(), "0x5.0");
        assert_eq!(disk_address(DISK_SLOTS).unwrap().to_string(), "0x4.1");
        assert_eq!(disk_address(MAX_DISKS), None);
    }

    #[test]
    fn no_two_disks_share_an_address_and_none_leaves_its_slots() {
        let all: BTreeSet<_> = (0..MAX_DISKS).map(|p| disk_address(p).unwrap()).collect();
        assert_eq!(all.len(), MAX_DISKS);
        assert!(all.iter().all(|a| (FIRST_DISK_SLOT..=LAST_DISK_SLOT).contains(&a.slot)));
        assert!(all.iter().all(|a| a.function < 8));
    }

    #[test]
    fn function_zero_of_a_slot_comes_before_its_others() {
        // A guest probes the other functions of a slot only if function 0 exists.
        for position in 0..MAX_DISKS {
            let address = disk_address(position).unwrap();
            if address.function > 0 {
                let below = disk_address(position - DISK_SLOTS).unwrap();
                assert_eq!((below.slot, below.function + 1), (address.slot, address.function));
            }
        }
    }
}
