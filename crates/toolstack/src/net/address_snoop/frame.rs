//! Address claims in ARP (RFC 826, RFC 5227) and IPv6 neighbour discovery (RFC 4861) frames.
//!
//! Checksums are not verified: guests offload them to their NICs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Ethertypes.
pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV6: u16 = 0x86dd;
/// Bytes of a frame that contain all that is read: Ethernet and IPv6 headers, and a solicitation
/// without options.
pub(super) const FRAME_BYTES: usize = 14 + 40 + 24;

/// ARP header: Ethernet, IPv4, and the lengths of their addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ICMPV6: u8 = 58;
/// Hop limit of a packet that no router has forwarded.
const NEAR: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Unicast MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Mac([u8; 6]);

/// Claim of an address by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressClaim {
    /// Sender of the frame.
    pub(super) mac: Mac,
    /// Claimed address. A host can have it.
    pub(super) address: IpAddr,
    /// True for an announcement of a new address.
    pub(super) announced: bool,
}

impl Mac {
    /// Returns the address; `None` for a multicast or zero address.
    pub(super) fn of(bytes: [u8; 6]) -> Option<Self> {
        let [first, ..] = bytes;
        (first & 1 == 0 && bytes != [0; 6]).then_some(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AddressClaim {
    /// Returns whether a host can have the claimed address.
    pub(super) fn is_hosts(&self) -> bool {
        let address = self.address;
        let to_all = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || to_all)
    }
}

impl FromStr for Mac {
    type Err = String;

    /// Parses the form `00:16:3e:00:00:01`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{}` is no hardware address", text.escape_default());
        let mut parts = text.split(':');
        let mut bytes = [0; 6];
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+'));
            *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or_else(bad)?;
        }
        if parts.next().is_some() {
            return Err(bad());
        }
        Self::of(bytes).ok_or_else(bad)
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Parses the claim of a frame, which may be truncated.
pub(super) fn claim(frame: &[u8]) -> Option<AddressClaim> {
    let (_, rest) = frame.split_first_chunk::<6>()?;
    let (sender, rest) = rest.split_first_chunk::<6>()?;
    let (kind, packet) = rest.split_first_chunk::<2>()?;
    let mac = Mac::of(*sender)?;
    match u16::from_be_bytes(*kind) {
        ARP => arp(mac, packet),
        IPV6 => neighbour(mac, packet),
        _ => None,
    }
}

/// Parses ARP. The sender of a request or reply claims its address, except in a probe for a free
/// address.
fn arp(mac: Mac, packet: &[u8]) -> Option<AddressClaim> {
    let (head, rest) = packet.split_first_chunk::<6>()?;
    let (operation, rest) = rest.split_first_chunk::<2>()?;
    let (hardware, rest) = rest.split_first_chunk::<6>()?;
    let (address, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<6>()?;
    let (target, _) = rest.split_first_chunk::<4>()?;
    let is_known = *head == ARP_HEAD && matches!(operation, [0, 1 | 2]);
    let announced = address == target;
    let claim = AddressClaim { mac, address: Ipv4Addr::from(*address).into(), announced };
    (is_known && *hardware == mac.0 && claim.is_hosts()).then_some(claim)
}

/// Parses neighbour discovery. A solicitation claims its source or, without one, its target, which
/// the sender is about to use. An advertisement claims its target.
fn neighbour(mac: Mac, packet: &[u8]) -> Option<AddressClaim> {
    let (&[version, ..], rest) = packet.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<2>()?;
    let (head, rest) = rest.split_first_chunk::<2>()?;
    let (source, rest) = rest.split_first_chunk::<16>()?;
    let (destination, rest) = rest.split_first_chunk::<16>()?;
    let (&[kind, code, ..], rest) = rest.split_first_chunk::<8>()?;
    let (target, _) = rest.split_first_chunk::<16>()?;
    if version >> 4 != 6 || *head != [ICMPV6, NEAR] || code != 0 {
        return None;
    }
    let (source, target) = (Ipv6Addr::from(*source), Ipv6Addr::from(*target));
    let (address, announced) = match kind {
        SOLICITATION if source.is_unspecified() => (target, true),
        SOLICITATION => (source, false),
        ADVERTISEMENT => (target, Ipv6Addr::from(*destination).is_multicast()),
        _ => return None,
    };
    Some(AddressClaim { mac, address: address.into(), announced }).filter(AddressClaim::is_hosts)
}

#[cfg(test)]
pub(super) mod tests;
