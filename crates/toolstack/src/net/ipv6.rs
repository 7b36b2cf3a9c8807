//! The host takes no part in IPv6 by devices that guests are at: a guest's router advertisement would
//! give it an address and a route.

use std::path::{Path, PathBuf};

use super::NetError;

/// Where the kernel is told which devices have IPv6. It is not there if none has.
const CONF: &str = "/proc/sys/net/ipv6/conf";

fn switch(device: &str) -> PathBuf {
    Path::new(CONF).join(device).join("disable_ipv6")
}

/// The host takes part in IPv6 by this device.
pub(super) fn is_on(device: &str) -> bool {
    std::fs::read_to_string(switch(device)).is_ok_and(|text| text.trim() == "0")
}

/// The kernel takes addresses and routes away with it. Before a device is up, it never has any.
pub(super) fn turn_off(device: &str) -> Result<(), NetError> {
    if !is_on(device) {
        return Ok(());
    }
    let switch = switch(device);
    std::fs::write(&switch, "1").map_err(|error| NetError::Refused {
        what: format!("turning IPv6 off by {}", switch.display()),
        why: error.to_string(),
    })
}
