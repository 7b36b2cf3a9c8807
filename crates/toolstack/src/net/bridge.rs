//! Bridge of a network.

use std::path::Path;

use super::NetError;
use super::ip::{Device, ip};
use super::ipv6;

/// File that the kernel shows only for bridges.
const KIND: &str = "bridge";

/// Creates the bridge. A bridge that another tool created is used as it is.
pub(super) async fn create(
    program: &Path,
    bridge: &str,
    mtu: u32,
    alias: &str,
) -> Result<(), NetError> {
    let device = Device::named(bridge)?;
    if !device.is_there() {
        ip(program, &["link", "add", "name", bridge, "type", "bridge"]).await?;
        // Set the alias, which marks the owner, as early as possible.
        ip(program, &["link", "set", "dev", bridge, "alias", alias]).await?;
    } else if !is_one(&device) {
        return Err(device.taken(KIND));
    }
    let mtu = mtu.to_string();
    let ours = device.alias() == alias;
    if ours {
        ipv6::turn_off(bridge)?;
    }
    let set = ["link", "set", "dev", bridge, "up", "mtu", &mtu];
    let (without, _) = set.split_at(set.len() - 2);
    ip(program, if ours { &set } else { without }).await
}

/// Checks that no device of another kind has the name.
pub(super) fn check(bridge: &str) -> Result<(), NetError> {
    let device = Device::named(bridge)?;
    if device.is_there() && !is_one(&device) { Err(device.taken(KIND)) } else { Ok(()) }
}

/// Returns whether the device is a bridge.
pub(super) fn is_one(device: &Device) -> bool {
    device.has(KIND)
}

/// Removes the bridge if this instance created it.
pub(super) async fn remove(program: &Path, bridge: &str, alias: &str) -> Result<(), NetError> {
    let device = Device::named(bridge)?;
    if !device.has(KIND) || device.alias() != alias {
        return Ok(());
    }
    ip(program, &["link", "del", "dev", bridge]).await
}
