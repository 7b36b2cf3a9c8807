//! Who says which address is its own: ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::ip::TransportLayer;
use crate::bytes::{array, byte};
use crate::mac::Mac;

/// The sender of an ARP packet, by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Its hardware address.
    pub mac: Mac,
    /// Its protocol address; 0.0.0.0 in a probe (RFC 5227).
    pub address: Ipv4Addr,
}

/// Hardware Ethernet, protocol IPv4, and the lengths of their addresses.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl Arp {
    /// Parses a packet at `at`; `None`: it is not ARP for IPv4 over Ethernet, or cut off.
    pub(super) fn parse(prefix: &[u8], at: u16) -> Option<Self> {
        let base = usize::from(at);
        if array(prefix, base)? != ETHERNET_IPV4 {
            return None;
        }
        // Its last field must be there too.
        let _target: [u8; 10] = array(prefix, base + 18)?;
        let (mac, address): ([u8; 6], [u8; 4]) =
            (array(prefix, base + 8)?, array(prefix, base + 14)?);
        Some(Self { mac: Mac(mac), address: address.into() })
    }
}

/// What a host says in neighbour discovery; what only a router may say is not among it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solicited {
    /// It asks for routers.
    Routers,
    /// It asks for the owner of an address, or tests whether there is one (RFC 4862).
    Owner,
    /// It says that an address is its own.
    Mine,
}

impl Solicited {
    /// By the type of the ICMPv6 message.
    pub(super) fn of(kind: u8) -> Option<Self> {
        match kind {
            133 => Some(Self::Routers),
            135 => Some(Self::Owner),
            136 => Some(Self::Mine),
            _ => None,
        }
    }

    /// Bytes before its options (RFC 4861, 4.1, 4.3, 4.4).
    fn fixed_bytes(self) -> u16 {
        match self {
            Self::Routers => 8,
            Self::Owner | Self::Mine => 24,
        }
    }

    /// The option with an address of the sender: source, or target link-layer address.
    fn option(self) -> u8 {
        match self {
            Self::Routers | Self::Owner => 1,
            Self::Mine => 2,
        }
    }
}

/// A message of neighbour discovery from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// What it says.
    pub says: Solicited,
    /// The address it is about; unspecified where it is about routers.
    pub target: Ipv6Addr,
    /// The hardware address that it tells for itself.
    pub mac: Option<Mac>,
    /// It tells different ones, or its options are not all within what is looked at.
    pub unclear: bool,
}

impl Neighbour {
    /// Parses a message at `at` that ends at `end`; `None`: it is cut off.
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
        let mut said = Self { says, target: target.into(), mac: None, unclear: false };
        said.read_options(prefix, options_at.into(), end as usize);
        Some(TransportLayer::Neighbour(said))
    }

    /// Walks the options (RFC 4861, 4.6); each has at least 8 bytes, so the prefix bounds them.
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
                self.unclear |= units != 1 || self.mac.is_some_and(|told| told != Mac(mac));
                self.mac = Some(Mac(mac));
            }
            at += usize::from(units) * 8;
        }
        self.unclear |= at > end;
    }

    /// The address that its sender, at `src`, says is its own. A test for duplicates says nothing
    /// yet.
    pub(super) fn claims(&self, src: Ipv6Addr) -> Option<Ipv6Addr> {
        let address = match self.says {
            Solicited::Mine => self.target,
            Solicited::Routers | Solicited::Owner => src,
        };
        (!address.is_unspecified() && !address.is_multicast()).then_some(address)
    }
}
