//! IPv4 prefixes.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::InternalError;

/// Prefix lengths of a subnet: from 10/8 to a gateway with five guests.
const BITS: std::ops::RangeInclusive<u8> = 8..=29;

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv4Prefix {
    pub(super) first: u32,
    pub(super) bits: u8,
}

impl Ipv4Prefix {
    pub(super) fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)
    }

    /// Returns whether the prefixes have a common address.
    pub(super) fn overlaps(self, other: Self) -> bool {
        let shared = self.mask() & other.mask();
        (self.first ^ other.first) & shared == 0
    }
}

impl fmt::Display for Ipv4Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.first), self.bits)
    }
}

/// Addresses of an internal network: the host is the gateway, and the rest is for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet(Ipv4Prefix);

impl Subnet {
    /// Returns the first of `10.213.0.0/24` to `10.213.255.0/24` that overlaps no used prefix.
    pub(super) fn free(used: &[Ipv4Prefix]) -> Option<Self> {
        let mut all = (0..=255u8).map(|third| Ipv4Prefix {
            first: Ipv4Addr::new(10, 213, third, 0).to_bits(),
            bits: 24,
        });
        all.find(|ipv4_prefix| used.iter().all(|used| !used.overlaps(*ipv4_prefix))).map(Self)
    }

    pub(super) fn block(self) -> Ipv4Prefix {
        self.0
    }

    /// Returns the prefix length.
    pub fn bits(self) -> u8 {
        self.0.bits
    }

    /// Returns the netmask.
    pub fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0.mask())
    }

    /// Returns the host's address: the first.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0.first | 1)
    }

    /// Returns the first and the last address for guests.
    pub fn guests(self) -> (Ipv4Addr, Ipv4Addr) {
        let last = (self.0.first | !self.0.mask()) - 1;
        (Ipv4Addr::from_bits(self.0.first | 2), Ipv4Addr::from_bits(last))
    }

    /// Returns the number of addresses for guests.
    pub fn count(self) -> u32 {
        let (first, last) = self.guests();
        last.to_bits() - first.to_bits() + 1
    }

    /// Returns the MAC address of the gateway. It is derived from the subnet, so that guests need
    /// not learn a new one.
    pub(super) fn gateway_mac(self) -> String {
        let [_, a, b, c] = self.gateway().octets();
        // Locally administered address.
        format!("02:72:77:{a:02x}:{b:02x}:{c:02x}")
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Subnet {
    type Err = InternalError;

    fn from_str(text: &str) -> Result<Self, InternalError> {
        let refused =
            |why: String| InternalError::Subnet { text: text.chars().take(40).collect(), why };
        let form = || refused("write it as 10.5.0.0/24".into());
        let (address, bits) = text.split_once('/').ok_or_else(form)?;
        let address: Ipv4Addr = address.parse().map_err(|_| form())?;
        let digits = bits.len() <= 2 && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse::<u8>().ok().filter(|_| digits).ok_or_else(form)?;
        if !BITS.contains(&bits) {
            return Err(refused(format!("its prefix has {} to {} bits", BITS.start(), BITS.end())));
        }
        let ipv4_prefix = Ipv4Prefix { first: address.to_bits(), bits };
        if ipv4_prefix.first & !ipv4_prefix.mask() != 0 {
            let first = ipv4_prefix.first & ipv4_prefix.mask();
            return Err(refused(format!("it begins at {}", Ipv4Prefix { first, bits })));
        }
        let first = address.octets()[0];
        let special =
            address.is_loopback() || address.is_link_local() || first == 0 || first >= 224;
        if special {
            return Err(refused("its addresses are reserved".into()));
        }
        Ok(Self(ipv4_prefix))
    }
}

impl TryFrom<String> for Subnet {
    type Error = InternalError;

    fn try_from(text: String) -> Result<Self, InternalError> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    #[test]
    fn a_subnet_has_a_gateway_and_guests() {
        let lan = subnet("10.5.0.0/24");
        assert_eq!(lan.gateway().to_string(), "10.5.0.1");
        let (first, last) = lan.guests();
        assert_eq!((first.to_string(), last.to_string()), ("10.5.0.2".into(), "10.5.0.254".into()));
        assert_eq!((lan.count(), lan.mask().to_string()), (253, "255.255.255.0".into()));
        assert_eq!((subnet("192.168.7.8/29").count(), subnet("10.0.0.0/8").bits()), (5, 8));
        assert_eq!(lan.gateway_mac(), "02:72:77:05:00:01");
        assert_eq!(lan.to_string(), "10.5.0.0/24");
    }

    #[test]
    fn what_is_no_subnet_is_refused_with_what_would_be() {
        let cases = [
            ("", "10.5.0.0/24"),
            ("10.5.0.0", "10.5.0.0/24"),
            ("10.5.0/24", "write it as"),
            ("10.5.0.0/+4", "write it as"),
            ("10.5.0.0/024", "write it as"),
            ("fd00::/64", "write it as"),
            ("10.5.0.0/30", "8 to 29"),
            ("0.0.0.0/0", "8 to 29"),
            ("10.5.0.1/24", "begins at 10.5.0.0/24"),
            ("127.0.0.0/8", "are reserved"),
            ("224.0.0.0/8", "are reserved"),
            ("169.254.0.0/16", "are reserved"),
        ];
        for (text, why) in cases {
            let error = text.parse::<Subnet>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_free_one_overlaps_nothing() {
        assert_eq!(Subnet::free(&[]), Some(subnet("10.213.0.0/24")));
        let used = ["10.213.0.0/24", "10.213.1.128/29", "10.212.0.0/16"].map(|t| subnet(t).0);
        assert_eq!(Subnet::free(&used), Some(subnet("10.213.2.0/24")));
        assert_eq!(Subnet::free(&[subnet("10.0.0.0/8").0]), None);
        assert_eq!(Subnet::free(&[Ipv4Prefix { first: 0, bits: 0 }]), None);
        let host = Ipv4Prefix { first: Ipv4Addr::new(10, 213, 0, 77).to_bits(), bits: 32 };
        assert_eq!(Subnet::free(&[host]), Some(subnet("10.213.1.0/24")));
    }
}
