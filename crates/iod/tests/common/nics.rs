//! Real guests with a NIC.

use std::path::Path;

use testkit::guest::{Machine, UML_NIC};

/// What a User-Mode Linux guest does before it has a NIC.
pub const DRIVERS: &str = UML_NIC;

/// A machine of QEMU with a NIC of so many pairs of queues. Its interrupts are not messages: to mask
/// one of those for a vhost-user NIC, QEMU 7.2 needs KVM, and without it ends.
pub fn qemu(socket: &Path, pairs: u16, mac: &str) -> Machine {
    let chardev = format!("socket,id=nic,path={}", socket.display());
    let netdev = format!("vhost-user,id=net,chardev=nic,queues={pairs}");
    let device = format!("virtio-net-pci,netdev=net,mq=on,vectors=0,mac={mac}");
    let args = ["-chardev", &chardev, "-netdev", &netdev, "-device", &device];
    let args = args.map(String::from).to_vec();
    Machine { cpus: pairs.into(), args, ..Machine::default() }
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
