//! The configuration space of a virtio-blk device (virtio 1.2, 5.2.4).

/// Parsed configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlkConfig {
    /// Size in sectors of 512 bytes.
    pub capacity_sectors: u64,
    /// Most data segments of one request.
    pub seg_max: u32,
    /// Block size in bytes.
    pub blk_size: u32,
    /// Logical blocks per physical block, as a power of two.
    pub physical_block_exp: u8,
    /// Smallest efficient request, in blocks.
    pub min_io_blocks: u16,
    /// Optimal request size, in blocks.
    pub opt_io_blocks: u32,
    /// Number of queues.
    pub num_queues: u16,
    /// Most sectors of one discard range.
    pub max_discard_sectors: u32,
    /// Most ranges of one discard.
    pub max_discard_seg: u32,
    /// Alignment of discards, in sectors.
    pub discard_sector_alignment: u32,
    /// Most sectors of one write-zeroes range.
    pub max_write_zeroes_sectors: u32,
    /// Most ranges of one write-zeroes.
    pub max_write_zeroes_seg: u32,
    /// True if write-zeroes may unmap.
    pub write_zeroes_may_unmap: bool,
}

impl BlkConfig {
    /// Bytes of the structure as every front-end requests it.
    pub const BYTES: u32 = 60;

    /// Parses little-endian fields. Fields missing at the end read as zero.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let u16_at = |at: usize| u16::from_le_bytes([byte(at), byte(at + 1)]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        Self {
            capacity_sectors: u64::from(u32_at(0)) | u64::from(u32_at(4)) << 32,
            seg_max: u32_at(12),
            blk_size: u32_at(20),
            physical_block_exp: byte(24),
            min_io_blocks: u16_at(26),
            opt_io_blocks: u32_at(28),
            num_queues: u16_at(34),
            max_discard_sectors: u32_at(36),
            max_discard_seg: u32_at(40),
            discard_sector_alignment: u32_at(44),
            max_write_zeroes_sectors: u32_at(48),
            max_write_zeroes_seg: u32_at(52),
            write_zeroes_may_unmap: byte(56) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        let mut bytes = [0; 60];
        bytes[..8].copy_from_slice(&0x1_0000_0002u64.to_le_bytes());
        bytes[20..24].copy_from_slice(&4096u32.to_le_bytes());
        bytes[34..36].copy_from_slice(&4u16.to_le_bytes());
        bytes[56] = 1;
        let config = BlkConfig::parse(&bytes);
        assert_eq!(config.capacity_sectors, 0x1_0000_0002);
        assert_eq!((config.blk_size, config.num_queues), (4096, 4));
        assert!(config.write_zeroes_may_unmap);
        assert_eq!(BlkConfig::parse(&bytes[..8]).capacity_sectors, 0x1_0000_0002);
    }
}
