//! Ethernet addresses of interfaces.

use std::fmt;

/// Ethernet address (IEEE 802, 8.2).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether this is a multicast or broadcast address.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether this may be the address of one interface: neither multicast nor zero.
    pub fn is_station(self) -> bool {
        !self.is_group() && self.0 != [0; 6]
    }

    /// Returns whether a bridge does not forward this address: 01-80-C2-00-00-00 to -0F (IEEE
    /// 802.1Q, 8.6.3).
    pub fn is_reserved(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
    }

    /// Returns the address with this number, of which only the lowest 48 bits count.
    pub(crate) fn of_number(number: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
        Self([a, b, c, d, e, f])
    }

    /// Returns the address as a number below 2^48.
    pub(crate) fn number(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_addresses() {
        let one = Mac([2, 0, 0, 0, 0, 1]);
        assert!(one.is_station() && !one.is_group());
        assert!(!Mac::default().is_station() && !Mac::default().is_group());
        assert!(Mac::BROADCAST.is_group() && !Mac::BROADCAST.is_station());
        assert!(Mac([0x33, 0x33, 0, 0, 0, 1]).is_group());
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0x0f]).is_reserved());
        assert!(!Mac([1, 0x80, 0xc2, 0, 0, 0x10]).is_reserved());
        assert_eq!(one.to_string(), "02:00:00:00:00:01");
        assert_eq!(one.number(), 0x0200_0000_0001);
        assert_eq!(Mac::of_number(one.number() | 1 << 50), one);
    }
}
