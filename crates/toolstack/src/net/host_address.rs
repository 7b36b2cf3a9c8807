//! Network device by which the host is reached.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::ip::Device;
use super::{HostNic, NetError, bridge, host_nic};

/// Longest query of a device. The kernel may ask the hardware for its speed.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);
/// The kernel's table of IPv4 routes.
const ROUTES: &str = "/proc/net/route";
/// Name servers of the host.
const RESOLVER: &str = "/etc/resolv.conf";

/// Network device with an address of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAddress {
    /// Device: hardware, virtual, a bond or a bridge.
    pub host_nic: HostNic,
    /// True if the device is a bridge.
    pub bridge: bool,
    /// Netmask of the address. Empty if the kernel shows none.
    pub netmask: String,
    /// IPv4 gateway of the default route through the device. Empty without one.
    pub gateway: String,
    /// Name servers of the host.
    pub name_servers: Vec<String>,
}

/// Returns the Ethernet device with this address. `None` if no device has it.
pub(super) async fn of(address: IpAddr) -> Result<Option<HostAddress>, NetError> {
    let what = || format!("finding the device with address {address}");
    let found = timeout(LOOK_DEADLINE, spawn_blocking(move || look(address))).await;
    let found = found.map_err(|_| NetError::Late(what()))?.unwrap_or_else(|gone| Err(gone.into()));
    found.map_err(|error| NetError::Refused { what: what(), why: error.to_string() })
}

fn look(address: IpAddr) -> io::Result<Option<HostAddress>> {
    let mut all = getifaddrs()?;
    let Some(found) = all.find(|one| one.address.as_ref().and_then(ip) == Some(address)) else {
        return Ok(None);
    };
    // A name that no option of `ip` can have belongs to no device of this toolstack either.
    let Ok(device) = Device::named(&found.interface_name) else { return Ok(None) };
    if !host_nic::is_ethernet(&device) {
        return Ok(None);
    }
    Ok(Some(HostAddress {
        bridge: bridge::is_one(&device),
        host_nic: host_nic::card(&device),
        netmask: found
            .netmask
            .as_ref()
            .and_then(ip)
            .map(|mask| mask.to_string())
            .unwrap_or_default(),
        // A host without IPv4 has no such table.
        gateway: gateway(&fs::read_to_string(ROUTES).unwrap_or_default(), device.name()),
        name_servers: name_servers(&fs::read_to_string(RESOLVER).unwrap_or_default()),
    }))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// Returns the gateway of the default route through a device, from the kernel's table.
fn gateway(routes: &str, device: &str) -> String {
    let gateway = routes.lines().find_map(|line| {
        let mut columns = line.split_whitespace();
        let (name, target, gateway) = (columns.next()?, columns.next()?, columns.next()?);
        let gateway = u32::from_str_radix(gateway, 16).ok().filter(|gateway| *gateway != 0)?;
        // The table shows addresses as the memory of this computer has them.
        let gateway = Ipv4Addr::from(gateway.to_ne_bytes());
        (name == device && target == "00000000").then_some(gateway)
    });
    gateway.map(|gateway| gateway.to_string()).unwrap_or_default()
}

fn name_servers(resolver: &str) -> Vec<String> {
    let server = |line: &str| Some(line.strip_prefix("nameserver")?.trim().to_owned());
    resolver.lines().filter_map(server).filter(|server| server.parse::<IpAddr>().is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_host_are_read() {
        let routes = "Iface\tDestination\tGateway \tFlags\n\
                      eth1\t00000000\t0101A8C0\t0003\n\
                      eth0\t0000A8C0\t00000000\t0001\n\
                      eth0\t00000000\t0102A8C0\t0003\n";
        let shown = u32::from_ne_bytes([192, 168, 2, 1]);
        let routes = routes.replace("0102A8C0", &format!("{shown:08X}"));
        assert_eq!(gateway(&routes, "eth0"), "192.168.2.1");
        assert_eq!(gateway(&routes, "eth2"), "");
        assert_eq!(gateway("", "eth0"), "");
        let resolver = "# nameserver 10.0.0.9\nnameserver 10.0.0.1\nsearch a\nnameserver ::1\n\
                        nameserver nonsense\n";
        assert_eq!(name_servers(resolver), ["10.0.0.1", "::1"]);
    }

    #[test]
    fn the_loopback_device_is_none() {
        assert_eq!(look(Ipv4Addr::LOCALHOST.into()).unwrap(), None);
        assert_eq!(look(Ipv4Addr::new(192, 0, 2, 77).into()).unwrap(), None);
    }
}
