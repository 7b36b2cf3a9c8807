//! Parses the first bytes of a frame into a checked value.
//!
//! Only a private copy may be parsed: a guest could change shared bytes after the decision. Parsing
//! is total: for any bytes the result is a [`Frame`] or one of two errors, in bounded time. An
//! unknown protocol is no error, since a switch forwards protocols that it does not know. The frame
//! marks it, and a locked port rejects it. The network layer is parsed on demand: a switch needs it
//! for few of the small frames.

mod dhcp;
mod extension_headers;
mod ip;
mod neighbour;
mod signature;
mod tuple;

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use dhcp::Bootp;
pub use ip::{Ip, Tcp, TransportLayer, Udp};
pub use neighbour::{Arp, Neighbour, Solicited};
pub use signature::FlowSignature;
pub use tuple::FiveTuple;

use crate::bytes::{array, be16};
use crate::drop_reason::Reason;
use crate::mac::Mac;

/// Bytes of a frame that are copied and parsed: enough for all headers of common traffic.
pub const PREFIX_BYTES: usize = 128;
/// Bytes of an Ethernet header.
pub const ETHER_BYTES: u16 = 14;
/// Bytes of a VLAN tag.
pub const TAG_BYTES: u16 = 4;
/// Longest frame in bytes: the largest IPv6 packet (its header and 64 KiB) and a tagged header.
pub const FRAME_MAX: u32 = 40 + 65_535 + 18;

/// EtherTypes that are parsed.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// A VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A service tag (IEEE 802.1ad).
    pub const SERVICE: u16 = 0x88a8;
}

/// Priority and number of a VLAN tag (IEEE 802.1Q, 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u16);

impl Tag {
    /// Returns the number of the VLAN; 0 for a tag with only a priority.
    pub fn vlan(self) -> u16 {
        self.0 & 0xfff
    }
}

/// Network layer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkLayer {
    /// Protocol that is not parsed.
    Opaque,
    /// Invalid ARP, IPv4 or IPv6.
    Broken,
    /// ARP for IPv4 over Ethernet.
    Arp(Arp),
    /// IPv4.
    V4(Ip<Ipv4Addr>),
    /// IPv6.
    V6(Ip<Ipv6Addr>),
}

/// Headers of a frame.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// Length of the whole frame in bytes.
    pub len: u32,
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// Outer tag, if it is an 802.1Q one.
    pub tag: Option<Tag>,
    /// EtherType after that tag; a length if it is below 0x600.
    pub kind: u16,
    /// Position of the network layer.
    pub net_at: u16,
    /// First bytes of the frame.
    prefix: &'a [u8],
    /// Network layer, once it was parsed.
    net: OnceCell<NetworkLayer>,
}

impl<'a> Frame<'a> {
    /// Parses `prefix`, the first bytes of a frame of `len` bytes: at least [`PREFIX_BYTES`], or
    /// the whole frame.
    ///
    /// # Errors
    /// [`Reason::ShortFrame`], also for a prefix with fewer bytes than required, and
    /// [`Reason::LongFrame`].
    pub fn parse(prefix: &'a [u8], len: usize) -> Result<Self, Reason> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if len > FRAME_MAX {
            return Err(Reason::LongFrame);
        }
        let most = PREFIX_BYTES.min(len as usize);
        let prefix = prefix.get(..most).ok_or(Reason::ShortFrame)?;
        let (Some(dst), Some(src), Some(mut kind)) =
            (array(prefix, 0), array(prefix, 6), be16(prefix, 12))
        else {
            return Err(Reason::ShortFrame);
        };
        let (mut tag, mut net_at) = (None, ETHER_BYTES);
        if kind == ethertype::VLAN {
            let (Some(tci), Some(inner)) = (be16(prefix, 14), be16(prefix, 16)) else {
                return Err(Reason::ShortFrame);
            };
            (tag, kind, net_at) = (Some(Tag(tci)), inner, ETHER_BYTES + TAG_BYTES);
        }
        let (dst, src, net) = (Mac(dst), Mac(src), OnceCell::new());
        Ok(Self { len, dst, src, tag, kind, net_at, prefix, net })
    }

    /// Returns the network layer.
    pub fn net(&self) -> NetworkLayer {
        *self.net.get_or_init(|| net(self.prefix, self.kind, self.net_at, self.len))
    }

    /// Returns the number of bytes after the Ethernet header and the tags, as an MTU counts them.
    pub fn payload_bytes(&self) -> u32 {
        let more = [ethertype::VLAN, ethertype::SERVICE].contains(&self.kind);
        let header = self.net_at + if more { TAG_BYTES } else { 0 };
        self.len.saturating_sub(header.into())
    }

    /// Returns the address that the sender claims as its own, by ARP or neighbour discovery. The
    /// port's address lock decides whether it may.
    pub fn claims(&self) -> Option<IpAddr> {
        match self.net() {
            NetworkLayer::Arp(arp) if arp.mac == self.src && !arp.address.is_unspecified() => {
                Some(arp.address.into())
            }
            NetworkLayer::V6(ip) if !ip.fragment => match ip.transport_layer {
                TransportLayer::Neighbour(message) => message.claims(ip.src).map(IpAddr::from),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the TCP header of an unfragmented segment and its position.
    pub fn tcp(&self) -> Option<(u16, Tcp)> {
        let (at, transport_layer) = self.transport()?;
        if let TransportLayer::Tcp(tcp) = transport_layer { Some((at, tcp)) } else { None }
    }

    /// Returns the transport layer and its position, if the packet is not a fragment.
    pub fn transport(&self) -> Option<(u16, TransportLayer)> {
        match self.net() {
            NetworkLayer::V4(Ip { fragment: false, at, transport_layer, .. })
            | NetworkLayer::V6(Ip { fragment: false, at, transport_layer, .. }) => {
                Some((at, transport_layer))
            }
            _ => None,
        }
    }
}

impl PartialEq for Frame<'_> {
    fn eq(&self, other: &Self) -> bool {
        let of =
            |frame: &Self| (frame.len, frame.dst, frame.src, frame.tag, frame.kind, frame.net_at);
        of(self) == of(other) && self.net() == other.net()
    }
}

fn net(prefix: &[u8], kind: u16, at: u16, len: u32) -> NetworkLayer {
    let parsed = match kind {
        ethertype::ARP => Arp::parse(prefix, at).map(NetworkLayer::Arp),
        ethertype::IPV4 => Ip::v4(prefix, at, len).map(NetworkLayer::V4),
        ethertype::IPV6 => Ip::v6(prefix, at, len).map(NetworkLayer::V6),
        _ => return NetworkLayer::Opaque,
    };
    parsed.unwrap_or(NetworkLayer::Broken)
}

#[cfg(test)]
pub(crate) mod tests;
