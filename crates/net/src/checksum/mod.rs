//! Internet checksum (RFC 1071), and completion of a checksum that the sender left partial.

use std::net::IpAddr;

use crate::bytes::put;

/// Ones' complement sum over consecutive pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Sum of the pieces, in this machine's byte order: the order does not matter for a ones'
    /// complement sum (RFC 1071, 2 B).
    total: u64,
    /// True if the number of bytes so far is odd.
    odd: bool,
}

/// Folds a sum to 16 bits, with all carries added.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

impl Sum {
    /// Adds `bytes`; at most 4 GiB in all.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<4>();
        // 2^32 words of 32 bits fit into 64.
        let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0; 4];
        last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
        sum = sum.wrapping_add(u32::from_ne_bytes(last).into());
        let piece = fold(sum);
        self.total += u64::from(if self.odd { piece.swap_bytes() } else { piece });
        self.odd ^= !bytes.len().is_multiple_of(2);
    }

    /// Returns the value for a checksum field: the complement of the sum.
    pub fn checksum(&self) -> [u8; 2] {
        (!fold(self.total)).to_ne_bytes()
    }

    /// Returns the sum of the pseudo header of TCP or UDP (RFC 9293, 3.1; RFC 8200, 8.1). `bytes`
    /// is the length from the transport header on.
    pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, bytes: u32) -> Self {
        let mut sum = Self::default();
        for address in [src, dst] {
            match address {
                IpAddr::V4(address) => sum.add(&address.octets()),
                IpAddr::V6(address) => sum.add(&address.octets()),
            }
        }
        sum.add(&bytes.to_be_bytes());
        sum.add(&[0, protocol]);
        sum
    }
}

/// Completes a partial checksum at `offset` bytes after `start`, over all bytes from `start` to the
/// end of `frame`. The field contains the sum of the pseudo header. Returns `None` and changes
/// nothing if the field is not within the frame.
///
/// A checksum of 0 is written in its other form, 0xffff: in UDP a 0 means that there is no
/// checksum.
pub fn finish(frame: &mut [u8], start: u16, offset: u16) -> Option<()> {
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    frame.get(at..at + 2)?;
    let mut sum = Sum::default();
    sum.add(frame.get(start..)?);
    let checksum = match sum.checksum() {
        [0, 0] => [0xff; 2],
        other => other,
    };
    put(frame, at, checksum)
}

#[cfg(test)]
mod tests;
