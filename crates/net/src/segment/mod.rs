//! TCP segmentation in software, for receivers that do not accept large frames.
//!
//! Each segment has the frame's headers. Fields that differ are set as by a sender without
//! offloads: lengths, the IPv4 identification (counting up), sequence numbers, CWR on the first
//! only, FIN and PSH on the last only, and complete checksums.

use std::net::IpAddr;

use crate::bytes::{be16, be32, byte, put};
use crate::checksum::Sum;
use crate::frame::{Frame, Ip, NetworkLayer};
use crate::header::{Gso, Header, TCP_CHECKSUM};

const TCP: u8 = 6;
/// Flags of TCP (RFC 9293, 3.1).
const FIN: u8 = 1;
const PSH: u8 = 8;
const CWR: u8 = 0x80;

/// Error of a buffer that is too small for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a segment of {0} bytes does not fit its buffer")]
pub struct BufferTooSmall(pub usize);

/// Frame that is being cut into segments.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    frame: &'a [u8],
    gso: Gso,
    addresses: (IpAddr, IpAddr),
    net_at: usize,
    tcp_at: usize,
    /// Position of the data that remains.
    at: usize,
    end: usize,
    /// Segments written so far.
    made: u16,
}

impl<'a> Segments<'a> {
    /// Begins to cut `frame`, a private copy of the whole frame with the headers `parsed`. Returns
    /// `None` if the header requests no segmentation, or if `frame` is not the parsed frame.
    pub fn new(frame: &'a [u8], parsed: &Frame<'_>, header: &Header) -> Option<Self> {
        let gso = header.gso()?;
        let (addresses, tcp_at, end) = match parsed.net() {
            NetworkLayer::V4(Ip { src, dst, at, end, .. }) => ((src.into(), dst.into()), at, end),
            NetworkLayer::V6(Ip { src, dst, at, end, .. }) => ((src.into(), dst.into()), at, end),
            _ => return None,
        };
        let (at, end) = (usize::from(gso.header), end as usize);
        frame.get(at..end)?;
        let (net_at, tcp_at) = (parsed.net_at.into(), tcp_at.into());
        Some(Self { frame, gso, addresses, net_at, tcp_at, at, end, made: 0 })
    }

    /// Returns the number of segments that remain.
    pub fn left(&self) -> usize {
        (self.end - self.at).div_ceil(self.gso.size.into())
    }

    /// Returns the bytes of the longest segment.
    pub fn bytes_max(&self) -> usize {
        usize::from(self.gso.header) + usize::from(self.gso.size)
    }

    /// Writes the next segment to the beginning of `out` and returns its length; `None` after the
    /// last one.
    ///
    /// # Errors
    /// [`BufferTooSmall`] if the segment does not fit; it is still the next one.
    pub fn write_next(&mut self, out: &mut [u8]) -> Result<Option<usize>, BufferTooSmall> {
        if self.at >= self.end {
            return Ok(None);
        }
        let header = usize::from(self.gso.header);
        let data = usize::from(self.gso.size).min(self.end - self.at);
        let bytes = header + data;
        let out = out.get_mut(..bytes).ok_or(BufferTooSmall(bytes))?;
        self.fill(out, header, data).ok_or(BufferTooSmall(bytes))?;
        self.at += data;
        self.made = self.made.wrapping_add(1);
        Ok(Some(bytes))
    }

    /// Writes a segment of exactly the length of `out`.
    fn fill(&self, out: &mut [u8], header: usize, data: usize) -> Option<()> {
        let (head, body) = out.split_at_mut_checked(header)?;
        head.copy_from_slice(self.frame.get(..header)?);
        body.copy_from_slice(self.frame.get(self.at..self.at + data)?);
        match self.addresses.0 {
            IpAddr::V4(_) => self.v4(out)?,
            IpAddr::V6(_) => {
                let payload = out.len() - self.net_at - 40;
                put(out, self.net_at + 4, u16::try_from(payload).ok()?.to_be_bytes())?;
            }
        }
        self.tcp(out, self.at - header, self.at + data == self.end)
    }

    fn v4(&self, out: &mut [u8]) -> Option<()> {
        let at = self.net_at;
        let total = u16::try_from(out.len() - at).ok()?;
        let id = be16(self.frame, at + 4)?.wrapping_add(self.made);
        put(out, at + 2, total.to_be_bytes())?;
        put(out, at + 4, id.to_be_bytes())?;
        put(out, at + 10, [0; 2])?;
        let mut sum = Sum::default();
        sum.add(out.get(at..self.tcp_at)?);
        put(out, at + 10, sum.checksum())
    }

    /// Sets the TCP fields of a segment whose data begin `before` bytes after the first one's.
    fn tcp(&self, out: &mut [u8], before: usize, last: bool) -> Option<()> {
        let at = self.tcp_at;
        let sequence = be32(self.frame, at + 4)?.wrapping_add(before as u32);
        put(out, at + 4, sequence.to_be_bytes())?;
        let not_first = if before > 0 { CWR } else { 0 };
        let not_last = if last { 0 } else { FIN | PSH };
        let flags = byte(self.frame, at + 13)? & !not_first & !not_last;
        put(out, at + 13, [flags])?;
        let place = at + usize::from(TCP_CHECKSUM);
        put(out, place, [0; 2])?;
        let segment = out.get(at..)?;
        let (src, dst) = self.addresses;
        let mut sum = Sum::pseudo(src, dst, TCP, u32::try_from(segment.len()).ok()?);
        sum.add(segment);
        put(out, place, sum.checksum())
    }
}

#[cfg(test)]
mod tests;
