//! Walks from an IP header to the transport layer.

use super::dhcp::{self, Bootp};
use super::ip::{TCP, Tcp, TransportLayer, UDP, Udp};
use super::neighbour::{self, Neighbour};
use crate::bytes::array;

/// Most extension headers of an IPv6 packet that are walked.
const EXTENSIONS_MAX: usize = 8;

/// Protocol numbers.
const ICMP6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

/// Position in the extension headers (RFC 8200, 4).
pub(super) struct ExtensionHeaders {
    /// Protocol of the next header.
    pub(super) protocol: u8,
    /// Position of the next header.
    pub(super) at: u16,
    /// Protocol named by a fragment header.
    pub(super) fragment: Option<u8>,
    /// True if there is a routing header.
    pub(super) routed: bool,
}

impl ExtensionHeaders {
    pub(super) fn new(protocol: u8, at: u16) -> Self {
        Self { protocol, at, fragment: None, routed: false }
    }

    pub(super) fn reach_upper(&mut self, packet_bounds: &PacketBounds<'_>) -> TransportLayer {
        for _ in 0..=EXTENSIONS_MAX {
            let bytes = match self.protocol {
                HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HIP | SHIM6 => 8,
                FRAGMENT | AUTHENTICATION => 8,
                TCP => return packet_bounds.tcp(self.at, self.fragment.is_some()),
                UDP => return packet_bounds.udp(self.at, false),
                ICMP6 => return packet_bounds.icmp6(self.at),
                _ => return TransportLayer::Other,
            };
            let head = match packet_bounds.get::<8>(self.at, bytes) {
                Ok(head) => head,
                Err(why) => return why,
            };
            let [next, size, ..] = head;
            let step = match self.protocol {
                FRAGMENT => {
                    let place = u16::from_be_bytes([head[2], head[3]]);
                    // An atomic fragment (RFC 6946) is a whole packet.
                    if place & 0xfff9 != 0 {
                        self.fragment.get_or_insert(next);
                    }
                    if place & 0xfff8 != 0 {
                        self.at = self.at.saturating_add(8);
                        return TransportLayer::Later;
                    }
                    8
                }
                AUTHENTICATION => (u16::from(size) + 2) * 4,
                _ => (u16::from(size) + 1) * 8,
            };
            // Bounded by the size of eight headers of 2 KiB.
            self.at = self.at.saturating_add(step);
            self.routed |= self.protocol == ROUTING;
            self.protocol = next;
        }
        TransportLayer::Unseen
    }
}

/// Copied bytes of a packet, and the end of the packet.
pub(super) struct PacketBounds<'a> {
    pub(super) prefix: &'a [u8],
    pub(super) end: u32,
}

impl PacketBounds<'_> {
    /// Returns `N` bytes at `at` of a header of `bytes` bytes, or the reason why not.
    fn get<const N: usize>(&self, at: u16, bytes: u16) -> Result<[u8; N], TransportLayer> {
        if u32::from(at) + u32::from(bytes) > self.end {
            return Err(TransportLayer::Broken);
        }
        array(self.prefix, at.into()).ok_or(TransportLayer::Unseen)
    }

    pub(super) fn tcp(&self, at: u16, fragment: bool) -> TransportLayer {
        let header: [u8; 14] = match self.get(at, 20) {
            Ok(header) => header,
            Err(why) => return why,
        };
        let bytes = u16::from(header[12] >> 4) * 4;
        let data_at = at.saturating_add(bytes);
        // In a first fragment the options may be cut off.
        if bytes < 20 || !fragment && u32::from(data_at) > self.end {
            return TransportLayer::Broken;
        }
        let [a, b, c, d, ..] = header;
        let (src, dst) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        TransportLayer::Tcp(Tcp { src, dst, data_at, flags: header[13] })
    }

    pub(super) fn udp(&self, at: u16, may_be_dhcp: bool) -> TransportLayer {
        let [a, b, c, d] = match self.get(at, 8) {
            Ok(ports) => ports,
            Err(why) => return why,
        };
        let (src, dst) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let bootp = if may_be_dhcp && dhcp::is_for(src, dst) {
            Bootp::parse(self.prefix, usize::from(at) + 8)
        } else {
            None
        };
        TransportLayer::Udp(Udp { src, dst, bootp })
    }

    fn icmp6(&self, at: u16) -> TransportLayer {
        match self.get::<1>(at, 4) {
            Ok([kind]) => match neighbour::Solicited::of(kind) {
                Some(solicited) => Neighbour::parse(solicited, self.prefix, at, self.end)
                    .unwrap_or(TransportLayer::Broken),
                None => TransportLayer::Icmp6(kind),
            },
            Err(why) => why,
        }
    }
}
