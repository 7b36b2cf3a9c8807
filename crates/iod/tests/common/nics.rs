//! Real guests with a NIC.

use std::path::Path;

use testkit::guest::{Machine, UML_NIC};

/// Script with which a User-Mode Linux guest sets up its NIC.
pub const DRIVERS: &str = UML_NIC;

/// Returns a QEMU machine with a NIC of this many queue pairs.
pub fn qemu(socket: &Path, pairs: u16, mac: &str) -> Machine {
    Machine::with_pci_nic(socket, pairs, mac)
}

/// Returns a QEMU machine that reconnects after its backend has died.
pub fn qemu_that_reconnects(socket: &Path, pairs: u16, mac: &str) -> Machine {
    let mut machine = qemu(socket, pairs, mac);
    // Option of the socket, in seconds.
    machine.args[1] += ",reconnect=1";
    machine
}

/// Returns a User-Mode Linux machine with a NIC.
pub fn uml(socket: &Path) -> Machine {
    Machine::with_nic(socket)
}
