//! Devices of an internal network: a bridge with the host's address, and a TAP device for a switch.
//!
//! The host has no IPv6 there. Otherwise a guest's router advertisement would give it an address
//! and a route.

use std::net::Ipv4Addr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use super::super::NetError;
use super::super::ip::{Device, ip};
use super::super::ipv6;
use super::spec::Spec;
use super::{InternalError, Name};

/// Refuses devices of another owner.
pub(super) fn check(name: &Name, known: bool) -> Result<(), NetError> {
    ours(&name.bridge(), "bridge", name, known)?;
    ours(&name.tap(), "tun_flags", name, known).map(drop)
}

/// Creates the devices, or completes them. Returns whether the bridge was created.
///
/// With `known`, the network is on record, so a device without an alias belongs to it too.
pub(super) async fn make(program: &Path, spec: &Spec, known: bool) -> Result<bool, NetError> {
    let (bridge, tap) = (spec.name.bridge(), spec.name.tap());
    let (bridge, tap) = (bridge.as_str(), tap.as_str());
    let made = !ours(bridge, "bridge", &spec.name, known)?;
    if made {
        // A bridge without its own MAC address takes those of its ports.
        let mac = spec.subnet.gateway_mac();
        ip(program, &["link", "add", "name", bridge, "address", &mac, "type", "bridge"]).await?;
    }
    // Before it is up, because it would have an address at once.
    ipv6::turn_off(bridge)?;
    let alias = spec.name.alias();
    ip(program, &["link", "set", "dev", bridge, "alias", &alias, "up"]).await?;
    let address = format!("{}/{}", spec.subnet.gateway(), spec.subnet.bits());
    ip(program, &["addr", "replace", &address, "broadcast", "+", "dev", bridge]).await?;
    if !ours(tap, "tun_flags", &spec.name, known)? {
        // Without an owner, every user with access to the driver could open it.
        let add = ["tuntap", "add", "dev", tap, "mode", "tap", "multi_queue", "vnet_hdr"];
        ip(program, &[&add[..], &["user", "0"]].concat()).await?;
    }
    ipv6::turn_off(tap)?;
    ip(program, &["link", "set", "dev", tap, "alias", &alias, "master", bridge, "up"]).await?;
    Ok(made)
}

/// Removes the devices of this network.
pub(super) async fn remove(program: &Path, name: &Name, known: bool) -> Result<(), NetError> {
    for (device, kind) in [(name.tap(), "tun_flags"), (name.bridge(), "bridge")] {
        if matches!(ours(&device, kind, name, known), Ok(true)) {
            ip(program, &["link", "del", "dev", &device]).await?;
        }
    }
    Ok(())
}

/// Returns whether a device of this kind exists and belongs to the network.
fn ours(device: &str, kind: &str, name: &Name, known: bool) -> Result<bool, NetError> {
    let device = Device::named(device)?;
    if !device.is_there() {
        return Ok(false);
    }
    let alias = device.alias();
    if !device.has(kind) || alias != name.alias() && !(known && alias.is_empty()) {
        return Err(NetError::Refused {
            what: format!("network device {}", device.name()),
            why: "it exists and belongs to another program".into(),
        });
    }
    Ok(true)
}

/// Returns whether any device of the network exists.
pub(super) fn any(name: &Name) -> bool {
    let mut all = [(name.tap(), "tun_flags"), (name.bridge(), "bridge")].into_iter();
    all.any(|(device, kind)| matches!(ours(&device, kind, name, false), Ok(true)))
}

/// Lists what is missing of the devices, or should not exist.
pub(super) fn missing(spec: &Spec) -> Vec<String> {
    let (name, gateway) = (&spec.name, spec.subnet.gateway());
    let mut missing = Vec::new();
    for (device, kind) in [(name.bridge(), "bridge"), (name.tap(), "tun_flags")] {
        if !matches!(ours(&device, kind, name, false), Ok(true)) {
            missing.push(format!("device {device} is missing"));
        } else if ipv6::is_on(&device) {
            let switch = format!("net.ipv6.conf.{device}.disable_ipv6");
            missing.push(format!("device {device} has IPv6 ({switch})"));
        }
    }
    let bridge = name.bridge();
    let is_there = Device::named(&bridge).is_ok_and(|device| device.is_there());
    if is_there && !has_address(&bridge, gateway) {
        missing.push(format!("device {bridge} has no address {gateway}"));
    }
    missing
}

fn has_address(device: &str, wanted: Ipv4Addr) -> bool {
    getifaddrs().into_iter().flatten().filter(|one| one.interface_name == device).any(|one| {
        let address = one.address.as_ref().and_then(SockaddrStorage::as_sockaddr_in);
        address.is_some_and(|address| address.ip() == wanted)
    })
}

/// Refuses if the network is in use: its bridge has ports, or a switch has opened its TAP device.
pub(super) fn unused(name: &Name) -> Result<(), InternalError> {
    let shown = |device: &str, what: &str| Path::new("/sys/class/net").join(device).join(what);
    let ports = std::fs::read_dir(shown(&name.bridge(), "brif"));
    let ports = ports.into_iter().flatten().flatten();
    let ports = ports.map(|port| port.file_name().to_string_lossy().into_owned());
    let mut by: Vec<String> = ports.filter(|port| *port != name.tap()).collect();
    let carrier = std::fs::read_to_string(shown(&name.tap(), "carrier")).unwrap_or_default();
    if carrier.trim() == "1" {
        by.push(format!("the process that has {} open", name.tap()));
    }
    if by.is_empty() {
        return Ok(());
    }
    by.sort();
    Err(InternalError::InUse { name: name.clone(), by: by.join(", ") })
}
