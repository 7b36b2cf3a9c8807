//! A network is a bridge.

use std::path::Path;

use super::NetError;
use super::ip::{Device, ip};
use super::ipv6;

/// What the kernel shows of a bridge alone.
const KIND: &str = "bridge";

/// Makes it; one that somebody else made is used as it is.
pub(super) async fn create(
    program: &Path,
    bridge: &str,
    mtu: u32,
    alias: &str,
) -> Result<(), NetError> {
    let device = Device::named(bridge)?;
    if !device.is_there() {
        ip(program, &["link", "add", "name", bridge, "type", "bridge"]).await?;
        // The name says whose it is as soon as it can.
        ip(program, &["link", "set", "dev", bridge, "alias", alias]).await?;
    } else if !device.has(KIND) {
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

/// Removes it if we have made it.
pub(super) async fn remove(program: &Path, bridge: &str, alias: &str) -> Result<(), NetError> {
    let device = Device::named(bridge)?;
    if !device.has(KIND) || device.alias() != alias {
        return Ok(());
    }
    ip(program, &["link", "del", "dev", bridge]).await
}
