//! Encodes replies as bytes.

use disk::Extent;

use crate::command::Refusal;
use crate::wire::{ALLOCATION_ID, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk, state};

/// Size in bytes of a simple reply without data.
pub(crate) const SIMPLE_BYTES: usize = 16;
/// Bytes before the data of a structured read reply.
pub(crate) const DATA_CHUNK_BYTES: usize = CHUNK_BYTES + 8;
/// Size in bytes of the reply to a read of a hole.
pub(crate) const HOLE_BYTES: usize = CHUNK_BYTES + 12;
/// Size in bytes of a chunk header.
const CHUNK_BYTES: usize = 20;

/// Concatenates the parts.
fn join<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    for (place, byte) in out.iter_mut().zip(parts.iter().copied().flatten()) {
        *place = *byte;
    }
    out
}

/// Returns a simple reply.
pub(crate) fn simple(cookie: u64, error: u32) -> [u8; SIMPLE_BYTES] {
    join(&[&SIMPLE_REPLY_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()])
}

/// Returns the header of a reply's only chunk, whose payload has `len` bytes.
fn chunk_header(kind: u16, cookie: u64, len: u32) -> [u8; CHUNK_BYTES] {
    join(&[
        &STRUCTURED_REPLY_MAGIC.to_be_bytes(),
        &chunk::DONE.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &len.to_be_bytes(),
    ])
}

/// Returns the bytes before `len` bytes of data read at `offset`.
pub(crate) fn data(cookie: u64, offset: u64, len: u32) -> [u8; DATA_CHUNK_BYTES] {
    let header = chunk_header(chunk::OFFSET_DATA, cookie, len.saturating_add(8));
    join(&[&header, &offset.to_be_bytes()])
}

/// Returns a chunk that reports `len` zero bytes at `offset` without sending them.
pub(crate) fn hole(cookie: u64, offset: u64, len: u32) -> [u8; HOLE_BYTES] {
    let header = chunk_header(chunk::OFFSET_HOLE, cookie, 12);
    join(&[&header, &offset.to_be_bytes(), &len.to_be_bytes()])
}

/// Returns an error chunk with its message.
pub(crate) fn error(cookie: u64, refusal: Refusal) -> Vec<u8> {
    let message = refusal.message.as_bytes();
    let mut out = chunk_header(chunk::ERROR, cookie, 6 + message.len() as u32).to_vec();
    out.extend(refusal.error.to_be_bytes());
    out.extend((message.len() as u16).to_be_bytes());
    out.extend(message);
    out
}

/// Returns a block-status chunk for a range.
pub(crate) fn block_status(cookie: u64, extents: &[Extent]) -> Vec<u8> {
    let len = 4 + 8 * extents.len() as u32;
    let mut out = chunk_header(chunk::BLOCK_STATUS, cookie, len).to_vec();
    out.extend(ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        // A request's length has 32 bits, and no extent reaches beyond the request.
        out.extend(u32::try_from(extent.len).unwrap_or(u32::MAX).to_be_bytes());
        out.extend(if extent.hole { state::HOLE | state::ZERO } else { 0 }.to_be_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_their_wire_form() {
        assert_eq!(simple(2, 22), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 2]);
        let data = data(2, 512, 100);
        assert_eq!(data[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(data[16..], [0, 0, 0, 108, 0, 0, 0, 0, 0, 0, 2, 0]);
        let hole = hole(2, 512, 100);
        assert_eq!(hole[4..8], [0, 1, 0, 2]);
        assert_eq!(hole[16..], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 100]);
        let error = error(1, Refusal { error: 5, message: "why" });
        assert_eq!(error[6..8], [0x80, 1]);
        assert_eq!(error[16..], [0, 0, 0, 9, 0, 0, 0, 5, 0, 3, b'w', b'h', b'y']);
        let extents = [Extent { len: 512, hole: true }, Extent { len: 1024, hole: false }];
        let status = block_status(1, &extents);
        assert_eq!(status[16..24], [0, 0, 0, 20, 0, 0, 0, 1]);
        assert_eq!(status[24..], [0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 4, 0, 0, 0, 0, 0]);
    }
}
