//! The virtio-net header (virtio 1.2, 5.1.6): what a frame's sender leaves to be done.
//!
//! A driver's header is checked against the frame that it is for, once. What comes out can be
//! handed to any receiver, or be finished in software where the receiver lacks an offload: no field
//! points outside of the frame, or at headers that the switch has decided on.

mod raw;

use crate::bytes::put;
use crate::drop_reason::Reason;
use crate::frame::{Frame, TAG_BYTES};
use raw::{DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, NEEDS_CSUM, RawHeader};

/// Bytes of the header, with `num_buffers`, as every driver of version 1 has it.
pub const HEADER_BYTES: usize = 12;
/// Smallest segments in bytes: what Linux's TCP does not go below (`TCP_MIN_GSO_SIZE`). It bounds
/// into how many frames one may be cut.
pub const GSO_MIN: u16 = 8;

/// Where TCP has its checksum.
pub(crate) const TCP_CHECKSUM: u16 = 16;

/// What may be left undone, by a sender or for a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums.
    pub checksum: bool,
    /// Segmentation of TCP over IPv4.
    pub tcp4: bool,
    /// Segmentation of TCP over IPv6.
    pub tcp6: bool,
    /// Segmentation of TCP with ECN.
    pub ecn: bool,
    /// A word that a checksum is right: a sender's is believed, or a receiver may be given one.
    pub vouches: bool,
}

impl Offloads {
    /// All of them: the kernel, behind a TAP device that is opened with all of them.
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

/// What is known of a frame's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: it should be there.
    #[default]
    Unknown,
    /// Somebody has checked it.
    Valid,
    /// Only the pseudo header's part is there.
    Partial {
        /// It covers what begins there.
        start: u16,
        /// It is that far behind the start.
        offset: u16,
    },
}

/// Kinds of segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// How a frame is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Kind of segments.
    pub kind: GsoKind,
    /// It has ECN's flags: CWR is for the first segment only.
    pub ecn: bool,
    /// Bytes of TCP data in each but the last.
    pub size: u16,
    /// Bytes of headers that each has, as the frame itself shows.
    pub header: u16,
}

/// A header that fits its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    checksum: Checksum,
    gso: Option<Gso>,
}

/// What software must do for a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareOffload {
    /// Nothing.
    Nothing,
    /// Complete the checksum.
    Checksum,
    /// Cut it into segments, with all their checksums.
    Segment,
}

impl Header {
    /// Checks the header `raw` of `frame`, by what its sender may leave undone. Flags that are not
    /// known are not looked at, as the specification demands (5.1.6.2.2).
    ///
    /// # Errors
    /// Why the frame cannot be handled.
    #[inline]
    pub fn parse(raw: &[u8], frame: &Frame<'_>, may: Offloads) -> Result<Self, Reason> {
        // Nothing is left undone, and the rest of it means nothing.
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

    /// Nothing is said of the frame: any receiver can have it as it is.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.checksum == Checksum::Unknown && self.gso.is_none()
    }

    /// What is known of the checksum.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// How it is to be cut; nothing if it is one segment.
    pub fn gso(&self) -> Option<Gso> {
        self.gso
    }

    /// What must be done in software for a receiver that takes `offloads`.
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

    /// The header for a receiver that takes `offloads`, when what it lacks has been done.
    pub fn for_receiver(&self, offloads: Offloads) -> Self {
        match self.finish_for(offloads) {
            SoftwareOffload::Checksum | SoftwareOffload::Segment => Self::default(),
            SoftwareOffload::Nothing if self.checksum == Checksum::Valid && !offloads.vouches => {
                Self::default()
            }
            SoftwareOffload::Nothing => *self,
        }
    }

    /// For the frame with a tag put in.
    pub fn tagged(&self) -> Self {
        self.moved(|at| at.saturating_add(TAG_BYTES))
    }

    /// For the frame with its tag taken out.
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

    /// As a driver reads it, for a frame that is spread over `buffers`.
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
