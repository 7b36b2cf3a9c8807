//! Real guests with a NIC.

use std::path::Path;

use testkit::guest::{Machine, UML_NIC};

/// What a User-Mode Linux guest does before it has a NIC.
pub const DRIVERS: &str = UML_NIC;

/// A machine of QEMU with a NIC of so many pairs of queues.
pub fn qemu(socket: &Path, pairs: u16, mac: &str) -> Machine {
    Machine::with_pci_nic(socket, pairs, mac)
}

/// The same, which connects again when its backend has died.
pub fn qemu_that_reconnects(socket: &Path, pairs: u16, mac: &str) -> Machine {
    let mut machine = qemu(socket, pairs, mac);
    // Of the socket; in seconds.
    machine.args[1] += ",reconnect=1";
    machine
}

/// A machine of User-Mode Linux with a NIC.
pub fn uml(socket: &Path) -> Machine {
    Machine::with_nic(socket)
}
