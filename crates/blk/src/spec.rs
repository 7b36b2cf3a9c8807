//! Constants of the virtio specification (virtio 1.2, 5.2).

/// Feature bits.
pub mod feature {
    /// The configuration has the maximum number of segments in a request.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The device refuses writes.
    pub const RO: u64 = 1 << 5;
    /// The configuration has a block size.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// FLUSH requests.
    pub const FLUSH: u64 = 1 << 9;
    /// The configuration has the physical block size.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// Several queues.
    pub const MQ: u64 = 1 << 12;
    /// DISCARD requests.
    pub const DISCARD: u64 = 1 << 13;
    /// WRITE_ZEROES requests.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Indirect descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Event indices.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The device is not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Bytes of a sector, the unit of all ranges.
pub(crate) const SECTOR: u64 = 512;
/// Bytes of a request header: type, reserved, sector.
pub(crate) const HEADER: usize = 16;
/// Bytes of a discard or write-zeroes segment: sector, number of sectors, flags.
pub(crate) const SEGMENT: usize = 16;
/// Bytes of a GET_ID answer.
pub(crate) const ID_BYTES: usize = 20;

pub(crate) const T_IN: u32 = 0;
pub(crate) const T_OUT: u32 = 1;
pub(crate) const T_FLUSH: u32 = 4;
pub(crate) const T_GET_ID: u32 = 8;
pub(crate) const T_DISCARD: u32 = 11;
pub(crate) const T_WRITE_ZEROES: u32 = 13;

/// Segment flag: the device may unmap the range.
pub(crate) const SEGMENT_UNMAP: u32 = 1;

pub(crate) const S_OK: u8 = 0;
pub(crate) const S_IOERR: u8 = 1;
pub(crate) const S_UNSUPP: u8 = 2;

/// Maximum number of segments in a request: the most that Linux uses with a ring of 128 entries.
pub(crate) const SEG_MAX: u32 = 126;
/// Maximum data of one request in bytes. Guests split at a few MiB. A larger request would keep a
/// reactor from its other queues during the copy.
pub(crate) const DATA_MAX: u64 = 64 << 20;
/// Maximum sectors of one discard or write-zeroes segment: 1 GiB, to bound the time of a request.
pub(crate) const RANGE_SECTORS_MAX: u32 = 1 << 21;
