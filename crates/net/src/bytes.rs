//! Fields in bytes that somebody else has written: reading and writing never panics.

/// `N` bytes at `at`, if they are there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The byte at `at`.
pub(crate) fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// A number in network order.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// A number in network order.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// A number in virtio's order.
pub(crate) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

/// Writes `value` at `at`; `None` if there is no room.
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value;
    Some(())
}
