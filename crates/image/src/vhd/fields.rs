//! Fields of footer and header: big-endian numbers, and their checksum.

/// Returns the bytes of a field, zeroes behind the end.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Stores a field. What would be behind the end is left out.
pub(super) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    let place = bytes.get_mut(at..at + field.len());
    place.into_iter().for_each(|place| place.copy_from_slice(field));
}

/// Returns the one's complement of the sum of all bytes but those of the checksum at `at`.
pub(super) fn checksum(bytes: &[u8], at: usize) -> u32 {
    let others = bytes.iter().enumerate().filter(|(index, _)| !(at..at + 4).contains(index));
    !others.fold(0_u32, |sum, (_, byte)| sum.wrapping_add((*byte).into()))
}
