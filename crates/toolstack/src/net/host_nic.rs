//! Network devices of the host that are brought into a bridge, with whatever is behind them.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::NetError;
use super::ip::{Device, ip};

/// What the kernel shows of devices that are no cards: bridges, TAP devices.
const OTHER_KINDS: [&str; 2] = ["bridge", "tun_flags"];
/// Longest look at all of them: a card answers within milliseconds.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);
/// The kernel's number for Ethernet (`ARPHRD_ETHER`).
const ETHERNET: &str = "1";

/// A network device of the host, as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNic {
    /// Its name.
    pub name: String,
    /// Its Ethernet address.
    pub mac: String,
    /// Most bytes of a packet.
    pub mtu: u32,
    /// There is hardware behind it.
    pub physical: bool,
    /// Something is at the other end of the cable. Nobody knows of one that is down.
    pub carrier: bool,
    /// Mbit a second; 0 where nobody knows.
    pub speed: u32,
    /// It sends and receives at the same time.
    pub full_duplex: bool,
    /// Numbers of vendor and device, and the address on the bus, where there is one.
    pub hardware: [String; 3],
}

/// All Ethernet devices that can be in a bridge, by name. For some of what the kernel shows it asks
/// the card itself.
pub(super) async fn all() -> Result<Vec<HostNic>, NetError> {
    let what = || "looking for network cards".to_owned();
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
    device.shows("type").as_deref() == Some(ETHERNET)
        && !OTHER_KINDS.iter().any(|one| device.has(one))
}

fn card(device: &Device) -> HostNic {
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

/// Brings a card into a bridge, and up. It has the bridge's largest packet then, if it can.
///
/// One that has addresses of the host's is refused: who is reached by them would be cut off.
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
        Some(master) => return refused(format!("it is in {master}; take it out there first")),
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

/// Takes a card out of a bridge, and down. One that is not in it is left alone.
pub(super) async fn leave(program: &Path, card: &str, bridge: &str) -> Result<(), NetError> {
    let device = Device::named(card)?;
    if device.leads_to("master").as_deref() != Some(bridge) {
        return Ok(());
    }
    ip(program, &["link", "set", "dev", card, "nomaster", "down"]).await
}

/// An address that the host has there, and that reaches further than the next station.
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
