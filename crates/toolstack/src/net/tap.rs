//! TAP device in a bridge, for the uplink of a switch.

use std::path::Path;

use super::NetError;
use super::ip::{Device, ip};
use super::ipv6;

/// File that the kernel shows only for TAP devices.
const KIND: &str = "tun_flags";

/// Creates the device in a bridge and sets it up.
pub(super) async fn create(
    program: &Path,
    tap: &str,
    bridge: &str,
    mtu: u32,
    alias: &str,
) -> Result<(), NetError> {
    let (device, mtu) = (Device::named(tap)?, mtu.to_string());
    Device::named(bridge)?;
    if !device.is_there() {
        // Without an owner, every user with access to the driver could open it.
        let add = ["tuntap", "add", "dev", tap, "mode", "tap", "user", "0"];
        ip(program, &[&add[..], &["multi_queue", "vnet_hdr"]].concat()).await?;
    } else if !device.has(KIND) {
        return Err(device.taken("TAP device"));
    }
    ipv6::turn_off(tap)?;
    let set = ["link", "set", "dev", tap, "alias", alias, "mtu", &mtu, "master", bridge, "up"];
    ip(program, &set).await
}

/// Removes the device.
pub(super) async fn remove(program: &Path, tap: &str) -> Result<(), NetError> {
    let device = Device::named(tap)?;
    if !device.has(KIND) {
        return Ok(());
    }
    ip(program, &["link", "del", "dev", tap]).await
}

/// Returns the existing devices of this instance.
pub(super) fn all(alias: &str) -> Result<Vec<String>, NetError> {
    let found = Device::all(alias).map_err(|error| NetError::Refused {
        what: "listing TAP devices".into(),
        why: error.to_string(),
    })?;
    let taps = found.iter().filter(|device| device.has(KIND));
    Ok(taps.map(|device| device.name().to_owned()).collect())
}
