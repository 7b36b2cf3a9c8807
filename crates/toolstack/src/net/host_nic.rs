//! Host NICs: network devices that join a bridge and connect it to the network behind them.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::NetError;
use super::ip::{Device, ip};

/// Files that the kernel shows only for devices that are no NICs: bridges and TAP devices.
const OTHER_KINDS: [&str; 2] = ["bridge", "tun_flags"];
/// Longest query of all host NICs. Each answers within milliseconds.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);
/// The kernel's number for Ethernet (`ARPHRD_ETHER`).
const ETHERNET: &str = "1";

/// Network device of the host, as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNic {
    /// Name of the device.
    pub name: String,
    /// MAC address.
    pub mac: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// True if the device has hardware.
    pub physical: bool,
    /// True if the link has a carrier. For a device that is down this is unknown, and false.
    pub carrier: bool,
    /// Speed in Mbit/s; 0 if unknown.
    pub speed: u32,
    /// True if the link is full duplex.
    pub full_duplex: bool,
    /// PCI vendor id, device id and bus address, where they exist.
    pub hardware: [String; 3],
}

/// Returns all Ethernet devices that can join a bridge, by name. For some values the kernel queries
/// the hardware.
pub(super) async fn all() -> Result<Vec<HostNic>, NetError> {
    let what = || "listing network cards".to_owned();
    let shown = timeout(LOOK_DEADLINE, spawn_blocking(shown)).await;
    let shown = shown.map_err(|_| NetError::Late(what()))?.unwrap_or_else(|gone| Err(gone.into()));
    shown.map_err(|error| NetError::Refused { what: what(), why: error.to_string() })
}

fn shown() -> io::Result<Vec<HostNic>> {
    let mut all: Vec<_> = Device::every()?.iter().filter(|one| is_card(one)).map(card).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn is_card(device: &Device) -> bool {
    is_ethernet(device) && !OTHER_KINDS.iter().any(|one| device.has(one))
}

pub(super) fn is_ethernet(device: &Device) -> bool {
    device.shows("type").as_deref() == Some(ETHERNET)
}

pub(super) fn card(device: &Device) -> HostNic {
    let number = |file: &str| device.shows(file).and_then(|text| text.parse().ok()).unwrap_or(0);
    let text = |file: &str| device.shows(file).unwrap_or_default();
    HostNic {
        name: device.name().to_owned(),
        mac: text("address"),
        mtu: number("mtu"),
        physical: device.has("device"),
        carrier: number("carrier") == 1,
        speed: number("speed"),
        full_duplex: text("duplex") == "full",
        hardware: [
            text("device/vendor"),
            text("device/device"),
            device.leads_to("device").unwrap_or_default(),
        ],
    }
}

/// Adds a host NIC to a bridge, sets it up, and sets the bridge's MTU.
///
/// A NIC with an address of the host is refused: clients that use the address would be
/// disconnected.
pub(super) async fn join(program: &Path, card: &str, bridge: &str) -> Result<(), NetError> {
    let device = Device::named(card)?;
    let refused = |why: String| {
        Err(NetError::Refused { what: format!("bringing {card} into bridge {bridge}"), why })
    };
    if !device.is_there() {
        return Err(NetError::NotThere(card.to_owned()));
    }
    if !is_card(&device) {
        return refused("it is no Ethernet card".into());
    }
    match device.leads_to("master") {
        Some(master) if master == bridge => {}
        Some(master) => return refused(format!("it belongs to {master}; remove it there first")),
        None => {
            if let Some(address) = of_host(card) {
                return Err(NetError::Reached { card: card.to_owned(), address });
            }
        }
    }
    let mtu =
        Device::named(bridge)?.shows("mtu").filter(|mtu| device.shows("mtu").as_ref() != Some(mtu));
    if let Some(mtu) = mtu {
        ip(program, &["link", "set", "dev", card, "mtu", &mtu]).await?;
    }
    ip(program, &["link", "set", "dev", card, "master", bridge, "up"]).await
}

/// Removes a host NIC from a bridge and sets it down. Does nothing if it is not in the bridge.
pub(super) async fn leave(program: &Path, card: &str, bridge: &str) -> Result<(), NetError> {
    let device = Device::named(card)?;
    if device.leads_to("master").as_deref() != Some(bridge) {
        return Ok(());
    }
    ip(program, &["link", "set", "dev", card, "nomaster", "down"]).await
}

/// Returns an address of the host on this NIC that is not link-local.
fn of_host(card: &str) -> Option<IpAddr> {
    let all = getifaddrs().ok()?.filter(|one| one.interface_name == card);
    let mut addresses = all.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    addresses.find(|address| match address {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    })
}
