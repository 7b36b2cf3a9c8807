//! Real guests with a NIC.

use std::path::Path;

use testkit::guest::{Machine, UML_NIC};

/// Script with which a User-Mode Linux guest sets up its NIC.
pub const DRIVERS: &str = UML_NIC;

/// Defines `hear PORT`, which prints the stream of one client. The input of `nc` stays open, because
/// its end would look like the end of the stream to the client. `hear` returns when the client has
/// acknowledged the end of the connection: a guest that ended earlier would leave its client waiting
/// for that end for ever. It waits 10 seconds at most, because a client that has ended may not have
/// acknowledged anything. With IPv6, `nc` listens for both.
pub const HEAR: &str = "mkfifo /tmp/nothing && exec 3<>/tmp/nothing
    hear() {
        busybox nc -l -p $1 <&3
        for try in $(seq 50); do
            cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ' 0[49B] ' || break
            sleep 0.2
        done
    }";

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
