//! The configuration space (virtio 1.2, 5.2.4).

use disk::Geometry;

use crate::spec::{RANGE_SECTORS_MAX, SECTOR, SEG_MAX};

/// Size of the configuration space in bytes, up to `write_zeroes_may_unmap` and its padding.
pub(crate) const CONFIG_BYTES: usize = 60;
/// Physical block size in bytes that today's file systems and devices use.
const PHYSICAL: u32 = 4096;

/// Returns the configuration space of a disk with `queues` queues.
pub(crate) fn config_space(geometry: &Geometry, queues: u16) -> [u8; CONFIG_BYTES] {
    let mut out = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = out.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    let block = geometry.block_size.max(SECTOR as u32);
    let blocks_per_physical = (PHYSICAL / block).max(1);
    let discard_sectors = geometry.discard_granularity.max(block) / SECTOR as u32;
    put(0, &(geometry.size / SECTOR).to_le_bytes());
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &block.to_le_bytes());
    put(24, &[blocks_per_physical.trailing_zeros() as u8]);
    put(26, &(blocks_per_physical as u16).to_le_bytes());
    // The host owns the cache mode; a driver that flushes sees a write-back cache.
    put(32, &[1]);
    put(34, &queues.to_le_bytes());
    for (at, value) in [(36, RANGE_SECTORS_MAX), (40, 1), (44, discard_sectors)] {
        put(at, &value.to_le_bytes());
    }
    for (at, value) in [(48, RANGE_SECTORS_MAX), (52, 1)] {
        put(at, &value.to_le_bytes());
    }
    put(56, &[1]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        let disk = Geometry {
            size: 1 << 30,
            block_size: 512,
            read_only: false,
            discard: true,
            discard_granularity: 4096,
        };
        let out = config_space(&disk, 4);
        let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(out[..8].try_into().unwrap()), (1 << 30) / 512);
        assert_eq!((word(12), word(20)), (126, 512));
        assert_eq!((out[24], out[26], out[27]), (3, 8, 0), "8 blocks in a physical one");
        assert_eq!((out[34], out[35]), (4, 0));
        assert_eq!((word(36), word(40), word(44)), (RANGE_SECTORS_MAX, 1, 8));
        assert_eq!((word(48), word(52), out[56]), (RANGE_SECTORS_MAX, 1, 1));
    }
}
