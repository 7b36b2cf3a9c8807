//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, as far as a frame's prefix contains them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::dhcp::Bootp;
use super::extension_headers::{ExtensionHeaders, PacketBounds};
use super::neighbour::Neighbour;
use crate::bytes::{array, be16, byte};

/// Protocol numbers.
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip<A> {
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// True for one of several fragments.
    pub fragment: bool,
    /// True if a routing header names, or may name, another final destination.
    pub routed: bool,
    /// Last protocol number that was reached; the same in all fragments of a packet.
    pub protocol: u8,
    /// Position of the transport layer in the frame, if it was reached.
    pub at: u16,
    /// Position of the end of the packet in the frame; padding follows it.
    pub end: u32,
    /// Transport layer of the packet.
    pub transport_layer: TransportLayer,
}

/// Transport layer of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportLayer {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp(Udp),
    /// ICMPv6 of that type, other than the messages of [`TransportLayer::Neighbour`].
    Icmp6(u8),
    /// Neighbour discovery message of a host.
    Neighbour(Neighbour),
    /// Another protocol.
    Other,
    /// Fragment that is not the first.
    Later,
    /// Packet that is shorter than its own header.
    Broken,
    /// Transport layer beyond the headers that are walked.
    Unseen,
}

/// TCP header (RFC 9293, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Position of the data in the frame.
    pub data_at: u16,
    /// Flags, from CWR to FIN.
    pub flags: u8,
}

/// UDP header (RFC 768).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// DHCP message, if the ports are those of DHCP.
    pub bootp: Option<Bootp>,
}

impl<A> Ip<A> {
    /// Returns whether the protocol is TCP or UDP, even if the ports are in another fragment.
    pub fn has_ports(&self) -> bool {
        [TCP, UDP].contains(&self.protocol)
    }
}

impl Ip<Ipv4Addr> {
    /// Parses a packet at `at` of a frame of `len` bytes. Returns `None` if the packet is invalid.
    pub(super) fn v4(prefix: &[u8], at: u16, len: u32) -> Option<Self> {
        let base = usize::from(at);
        let first = byte(prefix, base)?;
        let header = u16::from(first & 0xf) * 4;
        let total = be16(prefix, base + 2)?;
        let end = u32::from(at) + u32::from(total);
        if first >> 4 != 4 || header < 20 || total < header || end > len {
            return None;
        }
        let place = be16(prefix, base + 6)?;
        // More fragments, or an offset.
        let (fragment, later) = (place & 0x3fff != 0, place & 0x1fff != 0);
        let protocol = byte(prefix, base + 9)?;
        let address = |at| array::<4>(prefix, base + at).map(Ipv4Addr::from);
        let (src, dst) = (address(12)?, address(16)?);
        let at = at + header;
        let packet_bounds = PacketBounds { prefix, end };
        let transport_layer = match protocol {
            _ if later => TransportLayer::Later,
            TCP => packet_bounds.tcp(at, fragment),
            UDP => packet_bounds.udp(at, !fragment),
            _ => TransportLayer::Other,
        };
        Some(Self { src, dst, fragment, routed: false, protocol, at, end, transport_layer })
    }
}

impl Ip<Ipv6Addr> {
    /// Parses a packet at `at` of a frame of `len` bytes. Returns `None` if the packet is invalid.
    /// A jumbogram (RFC 2675) has a length of 0, and its transport layer counts as broken.
    pub(super) fn v6(prefix: &[u8], at: u16, len: u32) -> Option<Self> {
        let base = usize::from(at);
        let payload = be16(prefix, base + 4)?;
        let end = u32::from(at) + 40 + u32::from(payload);
        if byte(prefix, base)? >> 4 != 6 || end > len {
            return None;
        }
        let protocol = byte(prefix, base + 6)?;
        let address = |at| array::<16>(prefix, base + at).map(Ipv6Addr::from);
        let (src, dst) = (address(8)?, address(24)?);
        let mut extension_headers = ExtensionHeaders::new(protocol, at + 40);
        let transport_layer = extension_headers.reach_upper(&PacketBounds { prefix, end });
        // All fragments have the same number after their fragment header. Only the first fragment
        // has the headers that follow.
        let protocol = extension_headers.fragment.unwrap_or(extension_headers.protocol);
        let (fragment, at) = (extension_headers.fragment.is_some(), extension_headers.at);
        Some(Self {
            src,
            dst,
            fragment,
            routed: extension_headers.routed,
            protocol,
            at,
            end,
            transport_layer,
        })
    }
}
