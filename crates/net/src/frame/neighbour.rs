//! Claims of addresses: ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::ip::TransportLayer;
use crate::bytes::{array, byte};
use crate::mac::Mac;

/// Sender of an ARP packet, as the packet states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Hardware address of the sender.
    pub mac: Mac,
    /// Protocol address of the sender; 0.0.0.0 in a probe (RFC 5227).
    pub address: Ipv4Addr,
}

/// Hardware Ethernet, protocol IPv4, and the lengths of their addresses.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl Arp {
    /// Parses a packet at `at`. Returns `None` if it is truncated or not ARP for IPv4 over
    /// Ethernet.
    pub(super) fn parse(prefix: &[u8], at: u16) -> Option<Self> {
        let base = usize::from(at);
        if array(prefix, base)? != ETHERNET_IPV4 {
            return None;
        }
        // The last field must be present too.
        let _target: [u8; 10] = array(prefix, base + 18)?;
        let (mac, address): ([u8; 6], [u8; 4]) =
            (array(prefix, base + 8)?, array(prefix, base + 14)?);
        Some(Self { mac: Mac(mac), address: address.into() })
    }
}

/// Kind of a host's neighbour discovery message. Messages that only routers may send are not
/// included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solicited {
    /// Router solicitation.
    Routers,
    /// Neighbour solicitation: asks for the owner of an address, or detects duplicates (RFC 4862).
    Owner,
    /// Neighbour advertisement: claims an address.
    Mine,
}

impl Solicited {
    /// Returns the kind for an ICMPv6 type.
    pub(super) fn of(kind: u8) -> Option<Self> {
        match kind {
            133 => Some(Self::Routers),
            135 => Some(Self::Owner),
            136 => Some(Self::Mine),
            _ => None,
        }
    }

    /// Returns the number of bytes before the options (RFC 4861, 4.1, 4.3, 4.4).
    fn fixed_bytes(self) -> u16 {
        match self {
            Self::Routers => 8,
            Self::Owner | Self::Mine => 24,
        }
    }

    /// Returns the option with the sender's address: source or target link-layer address.
    fn option(self) -> u8 {
        match self {
            Self::Routers | Self::Owner => 1,
            Self::Mine => 2,
        }
    }
}

/// Neighbour discovery message of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Kind of the message.
    pub says: Solicited,
    /// Address that the message is about; unspecified for a router solicitation.
    pub target: Ipv6Addr,
    /// Hardware address that the sender states for itself.
    pub mac: Option<Mac>,
    /// True if the message states different addresses, or if its options exceed the parsed bytes.
    pub unclear: bool,
}

impl Neighbour {
    /// Parses a message at `at` that ends at `end`. Returns `None` if it is truncated.
    pub(super) fn parse(
        says: Solicited,
        prefix: &[u8],
        at: u16,
        end: u32,
    ) -> Option<TransportLayer> {
        let options_at = at.checked_add(says.fixed_bytes())?;
        if u32::from(options_at) > end {
            return None;
        }
        let target = match says {
            Solicited::Routers => [0; 16],
            Solicited::Owner | Solicited::Mine => {
                let Some(target) = array(prefix, usize::from(at) + 8) else {
                    return Some(TransportLayer::Unseen);
                };
                target
            }
        };
        let mut message = Self { says, target: target.into(), mac: None, unclear: false };
        message.read_options(prefix, options_at.into(), end as usize);
        Some(TransportLayer::Neighbour(message))
    }

    /// Reads the options (RFC 4861, 4.6). Each has at least 8 bytes, so the prefix bounds their
    /// number.
    fn read_options(&mut self, prefix: &[u8], mut at: usize, end: usize) {
        while at < end {
            let (Some(kind), Some(units @ 1..)) = (byte(prefix, at), byte(prefix, at + 1)) else {
                self.unclear = true;
                return;
            };
            if kind == self.says.option() {
                let Some(mac) = array(prefix, at + 2) else {
                    self.unclear = true;
                    return;
                };
                self.unclear |= units != 1 || self.mac.is_some_and(|earlier| earlier != Mac(mac));
                self.mac = Some(Mac(mac));
            }
            at += usize::from(units) * 8;
        }
        self.unclear |= at > end;
    }

    /// Returns the address that the sender, at `src`, claims. A test for duplicates claims none
    /// yet.
    pub(super) fn claims(&self, src: Ipv6Addr) -> Option<Ipv6Addr> {
        let address = match self.says {
            Solicited::Mine => self.target,
            Solicited::Routers | Solicited::Owner => src,
        };
        (!address.is_unspecified() && !address.is_multicast()).then_some(address)
    }
}
