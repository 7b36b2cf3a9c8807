//! Switch that disables IPv6 of the host on devices for guests. Otherwise a guest's router
//! advertisement would give the host an address and a route.

use std::path::{Path, PathBuf};

use super::NetError;

/// The kernel's IPv6 settings of devices. The directory does not exist without IPv6.
const CONF: &str = "/proc/sys/net/ipv6/conf";

fn switch(device: &str) -> PathBuf {
    Path::new(CONF).join(device).join("disable_ipv6")
}

/// Returns whether the host has IPv6 on this device.
pub(super) fn is_on(device: &str) -> bool {
    std::fs::read_to_string(switch(device)).is_ok_and(|text| text.trim() == "0")
}

/// Turns IPv6 off. The kernel then removes addresses and routes. Before the device is up, it has
/// none.
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
