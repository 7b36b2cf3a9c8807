//! Fields of a virtio-net header, and their checks against the frame (virtio 1.2, 5.1.6.2).

use super::{Checksum, GSO_MIN, Gso, GsoKind, HEADER_BYTES, Offloads, TCP_CHECKSUM};
use crate::bytes::{byte, le16};
use crate::drop_reason::Reason;
use crate::frame::{Frame, Ip, NetworkLayer, TAG_BYTES, TransportLayer};

pub(super) const NEEDS_CSUM: u8 = 1;
pub(super) const DATA_VALID: u8 = 2;

pub(super) const GSO_NONE: u8 = 0;
pub(super) const GSO_TCP4: u8 = 1;
const GSO_UDP: u8 = 3;
pub(super) const GSO_TCP6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
pub(super) const GSO_ECN: u8 = 0x80;

/// Fields as the driver wrote them.
pub(super) struct RawHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl RawHeader {
    pub(super) fn read(raw: &[u8]) -> Option<Self> {
        let raw = raw.get(..HEADER_BYTES)?;
        Some(Self {
            flags: byte(raw, 0)?,
            gso_type: byte(raw, 1)?,
            hdr_len: le16(raw, 2)?,
            gso_size: le16(raw, 4)?,
            csum_start: le16(raw, 6)?,
            csum_offset: le16(raw, 8)?,
        })
    }

    pub(super) fn checksum(&self, frame: &Frame<'_>, may: Offloads) -> Result<Checksum, Reason> {
        if self.flags & NEEDS_CSUM == 0 {
            let valid = self.flags & DATA_VALID != 0 && may.vouches;
            return Ok(if valid { Checksum::Valid } else { Checksum::Unknown });
        }
        if !may.checksum {
            return Err(Reason::NotNegotiated);
        }
        let (start, offset) = (self.csum_start, self.csum_offset);
        // The checksum must be written after the headers that were decided on.
        let first = match frame.net() {
            NetworkLayer::V4(Ip { at, .. }) | NetworkLayer::V6(Ip { at, .. }) => at,
            NetworkLayer::Opaque | NetworkLayer::Broken | NetworkLayer::Arp(_) => frame.net_at,
        };
        let end = u32::from(start) + u32::from(offset) + 2;
        // Inserting a tag must not overflow the position.
        let tagged = start.checked_add(TAG_BYTES);
        if start < first || end > frame.len || tagged.is_none() {
            return Err(Reason::ChecksumRange);
        }
        Ok(Checksum::Partial { start, offset })
    }

    pub(super) fn gso(
        &self,
        frame: &Frame<'_>,
        may: Offloads,
        checksum: Checksum,
    ) -> Result<Option<Gso>, Reason> {
        let ecn = self.gso_type & GSO_ECN != 0;
        let (kind, negotiated) = match self.gso_type & !GSO_ECN {
            GSO_NONE if ecn => return Err(Reason::EcnWithoutGso),
            GSO_NONE => return Ok(None),
            GSO_TCP4 => (GsoKind::Tcp4, may.tcp4),
            GSO_TCP6 => (GsoKind::Tcp6, may.tcp6),
            // Known, but never offered.
            GSO_UDP | GSO_UDP_L4 => return Err(Reason::NotNegotiated),
            _ => return Err(Reason::UnknownGso),
        };
        if !negotiated || ecn && !may.ecn {
            return Err(Reason::NotNegotiated);
        }
        let Checksum::Partial { start, offset } = checksum else {
            return Err(Reason::GsoWithoutChecksum);
        };
        if self.gso_size < GSO_MIN {
            return Err(Reason::GsoSize);
        }
        if u32::from(self.hdr_len) > frame.len {
            return Err(Reason::GsoHeader);
        }
        let (at, end, header) = tcp_of(frame, kind).ok_or(Reason::GsoMismatch)?;
        if (start, offset) != (at, TCP_CHECKSUM) {
            return Err(Reason::GsoMismatch);
        }
        // A frame that fits into one segment is one, as in Linux.
        let one = end - u32::from(header) <= u32::from(self.gso_size);
        Ok((!one).then_some(Gso { kind, ecn, size: self.gso_size, header }))
    }
}

/// Returns the start of the TCP header, the end of the packet, and the start of the data, if the
/// frame is of that kind.
fn tcp_of(frame: &Frame<'_>, kind: GsoKind) -> Option<(u16, u32, u16)> {
    let (TransportLayer::Tcp(tcp), at, end) = (match (frame.net(), kind) {
        (NetworkLayer::V4(ip), GsoKind::Tcp4) if !ip.fragment => {
            (ip.transport_layer, ip.at, ip.end)
        }
        // With another final destination, the checksum of a segment cannot be computed.
        (NetworkLayer::V6(ip), GsoKind::Tcp6) if !ip.fragment && !ip.routed => {
            (ip.transport_layer, ip.at, ip.end)
        }
        _ => return None,
    }) else {
        return None;
    };
    Some((at, end, tcp.data_at))
}
