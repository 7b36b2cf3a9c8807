//! Configuration space (virtio 1.2, 5.1.4).

use crate::bytes::put;
use crate::mac::Mac;

/// Bytes of the space, up to `supported_hash_types`.
pub const CONFIG_BYTES: usize = 24;
/// Most queue pairs that the specification allows.
pub const PAIRS_MAX: u16 = 0x8000;
/// Smallest MTU that the device may report.
pub const MTU_MIN: u16 = 68;

/// Status bit: the link is up (virtio 1.2, 5.1.4).
const LINK_UP: u16 = 1;
/// Status bit: the driver is asked to announce itself.
const ANNOUNCE: u16 = 2;

/// Contents of the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address of the interface.
    pub mac: Mac,
    /// True if the link is up.
    pub link: bool,
    /// True if the driver is asked to announce itself.
    pub announce: bool,
    /// Queue pairs, clamped to 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// Most bytes of a frame without its Ethernet header, at least [`MTU_MIN`].
    pub mtu: u16,
}

impl Config {
    /// Returns the bytes that a driver reads.
    pub fn bytes(&self) -> [u8; CONFIG_BYTES] {
        let mut out = [0; CONFIG_BYTES];
        let link = if self.link { LINK_UP } else { 0 };
        let status = link | if self.announce { ANNOUNCE } else { 0 };
        let _ = put(&mut out, 0, self.mac.0);
        let _ = put(&mut out, 6, status.to_le_bytes());
        let _ = put(&mut out, 8, self.pairs.clamp(1, PAIRS_MAX).to_le_bytes());
        let _ = put(&mut out, 10, self.mtu.max(MTU_MIN).to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        let mac = Mac([2, 3, 4, 5, 6, 7]);
        let config = Config { mac, link: true, announce: true, pairs: 0x102, mtu: 9000 };
        let bytes = config.bytes();
        assert_eq!(bytes[..12], [2, 3, 4, 5, 6, 7, 3, 0, 2, 1, 0x28, 0x23]);
        assert_eq!(bytes[12..], [0; 12], "no speed, no RSS");
        let config = Config { mac, link: false, announce: false, pairs: 0, mtu: 0 };
        assert_eq!(config.bytes()[6..12], [0, 0, 1, 0, 68, 0]);
    }
}
