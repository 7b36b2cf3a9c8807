//! The virtio-net header (virtio 1.2, 5.1.6): offloads that a frame's sender leaves to be done.
//!
//! A driver's header is checked once against its frame. The checked header can be passed to any
//! receiver, or be completed in software if the receiver lacks an offload. No field points outside
//! of the frame, or at headers that the switch has decided on.

mod raw;

use crate::bytes::put;
use crate::drop_reason::Reason;
use crate::frame::{Frame, TAG_BYTES};
use raw::{DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, NEEDS_CSUM, RawHeader};

/// Bytes of the header with `num_buffers`, as every driver of version 1 uses it.
pub const HEADER_BYTES: usize = 12;
/// Smallest segment size in bytes: the lower limit of Linux's TCP (`TCP_MIN_GSO_SIZE`). It bounds
/// the number of segments of a frame.
pub const GSO_MIN: u16 = 8;

/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM: u16 = 16;

/// Offloads that a sender may leave undone, or that a receiver accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Partial checksums.
    pub checksum: bool,
    /// Segmentation of TCP over IPv4.
    pub tcp4: bool,
    /// Segmentation of TCP over IPv6.
    pub tcp6: bool,
    /// Segmentation of TCP with ECN.
    pub ecn: bool,
    /// Valid-checksum marks: believed from a sender, or accepted by a receiver.
    pub vouches: bool,
}

impl Offloads {
    /// All offloads: those of the kernel behind a TAP device that enables all of them.
    pub const KERNEL: Self =
        Self { checksum: true, tcp4: true, tcp6: true, ecn: true, vouches: true };

    fn segments(self, gso: Gso) -> bool {
        let kind = match gso.kind {
            GsoKind::Tcp4 => self.tcp4,
            GsoKind::Tcp6 => self.tcp6,
        };
        kind && self.checksum && (self.ecn || !gso.ecn)
    }
}

/// State of a frame's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Not known: the frame should contain a complete checksum.
    #[default]
    Unknown,
    /// Already checked.
    Valid,
    /// Only the pseudo header is summed.
    Partial {
        /// First byte that the checksum covers.
        start: u16,
        /// Position of the checksum after `start`.
        offset: u16,
    },
}

/// Kind of segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// Segmentation of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Kind of segments.
    pub kind: GsoKind,
    /// True if the segments have ECN flags: CWR is for the first segment only.
    pub ecn: bool,
    /// Bytes of TCP data in each segment but the last.
    pub size: u16,
    /// Bytes of headers in each segment, computed from the frame itself.
    pub header: u16,
}

/// Header that fits its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    checksum: Checksum,
    gso: Option<Gso>,
}

/// Work that software must do for a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareOffload {
    /// No work.
    Nothing,
    /// Complete the checksum.
    Checksum,
    /// Cut the frame into segments, with all their checksums.
    Segment,
}

impl Header {
    /// Checks the header `raw` of `frame` against the offloads that its sender may use. Unknown
    /// flags are ignored, as the specification demands (5.1.6.2.2).
    ///
    /// # Errors
    /// Reason why the frame cannot be handled.
    #[inline]
    pub fn parse(raw: &[u8], frame: &Frame<'_>, may: Offloads) -> Result<Self, Reason> {
        // No offload is used, and the other fields are meaningless.
        if let Some([0, GSO_NONE, ..]) = raw.first_chunk::<HEADER_BYTES>() {
            return Ok(Self::default());
        }
        Self::parse_fields(raw, frame, may)
    }

    #[inline(never)]
    fn parse_fields(raw: &[u8], frame: &Frame<'_>, may: Offloads) -> Result<Self, Reason> {
        let raw = RawHeader::read(raw).ok_or(Reason::ShortHeader)?;
        let checksum = raw.checksum(frame, may)?;
        let gso = raw.gso(frame, may, checksum)?;
        Ok(Self { checksum, gso })
    }

    /// Returns whether the header uses no offload, so that any receiver accepts the frame as it is.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.checksum == Checksum::Unknown && self.gso.is_none()
    }

    /// Returns the state of the checksum.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns the segmentation; `None` if the frame is one segment.
    pub fn gso(&self) -> Option<Gso> {
        self.gso
    }

    /// Returns the work that software must do for a receiver that accepts `offloads`.
    pub fn finish_for(&self, offloads: Offloads) -> SoftwareOffload {
        if self.is_plain() {
            return SoftwareOffload::Nothing;
        }
        match (self.gso, self.checksum) {
            (Some(gso), _) if !offloads.segments(gso) => SoftwareOffload::Segment,
            (None, Checksum::Partial { .. }) if !offloads.checksum => SoftwareOffload::Checksum,
            _ => SoftwareOffload::Nothing,
        }
    }

    /// Returns the header for a receiver that accepts `offloads`, after the software work was done.
    pub fn for_receiver(&self, offloads: Offloads) -> Self {
        match self.finish_for(offloads) {
            SoftwareOffload::Checksum | SoftwareOffload::Segment => Self::default(),
            SoftwareOffload::Nothing if self.checksum == Checksum::Valid && !offloads.vouches => {
                Self::default()
            }
            SoftwareOffload::Nothing => *self,
        }
    }

    /// Returns the header for the frame with a tag inserted.
    pub fn tagged(&self) -> Self {
        self.moved(|at| at.saturating_add(TAG_BYTES))
    }

    /// Returns the header for the frame with its tag removed.
    pub fn untagged(&self) -> Self {
        self.moved(|at| at.saturating_sub(TAG_BYTES))
    }

    fn moved(&self, by: impl Fn(u16) -> u16) -> Self {
        let checksum = match self.checksum {
            Checksum::Partial { start, offset } => Checksum::Partial { start: by(start), offset },
            other => other,
        };
        let gso = self.gso.map(|gso| Gso { header: by(gso.header), ..gso });
        Self { checksum, gso }
    }

    /// Returns the bytes that a driver reads, for a frame that spans `buffers` buffers.
    pub fn bytes(&self, buffers: u16) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        if self.is_plain() {
            let _ = put(&mut out, 10, buffers.to_le_bytes());
            return out;
        }
        let (flags, start, offset) = match self.checksum {
            Checksum::Unknown => (0, 0, 0),
            Checksum::Valid => (DATA_VALID, 0, 0),
            Checksum::Partial { start, offset } => (NEEDS_CSUM, start, offset),
        };
        let (kind, header, size) = match self.gso {
            None => (GSO_NONE, 0, 0),
            Some(Gso { kind, ecn, size, header }) => {
                let kind = match kind {
                    GsoKind::Tcp4 => GSO_TCP4,
                    GsoKind::Tcp6 => GSO_TCP6,
                };
                (kind | if ecn { GSO_ECN } else { 0 }, header, size)
            }
        };
        let _ = put(&mut out, 0, [flags, kind]);
        for (at, field) in [(2, header), (4, size), (6, start), (8, offset), (10, buffers)] {
            let _ = put(&mut out, at, field.to_le_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests;
