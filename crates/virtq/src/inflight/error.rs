//! Errors of in-flight regions.

use memory::MemoryError;

impl InflightError {
    /// Returns whether the front-end has caused this since the region was adopted: it has truncated
    /// or overwritten the region.
    pub fn is_owner_fault(&self) -> bool {
        match self {
            Self::Memory(error) => error.is_owner_fault(),
            Self::Foreign | Self::Version { .. } | Self::Shape { .. } => true,
            _ => false,
        }
    }
}

/// Reason why an in-flight region is not used. The region was not changed.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// The number or size of queues is out of range.
    #[error(
        "in-flight region for {queues} queues of {size}: 1 to 256 queues of 1 to 32768 are possible"
    )]
    Bounds {
        /// Requested number of queues.
        queues: u16,
        /// Requested entries of each queue.
        size: u16,
    },
    /// The front-end's description of the region is impossible.
    #[error(
        "in-flight region of {bytes} bytes at offset {offset} of its file cannot be used; \
         {need} bytes are needed, at a multiple of 64 and below 1 GiB"
    )]
    Window {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Size that the front-end gave, in bytes.
        bytes: u64,
        /// Size that the queues need, in bytes.
        need: u64,
    },
    /// The file of the region cannot be mapped.
    #[error("in-flight region cannot be mapped")]
    Memory(#[from] MemoryError),
    /// The region is neither Ringway's nor empty.
    #[error("in-flight region was not made by this program; the front-end must ask for a new one")]
    Foreign,
    /// Another version of this program wrote the region.
    #[error(
        "in-flight region has layout version {found}, this program knows {known}; \
         run the version that wrote it, or reset the device"
    )]
    Version {
        /// Layout version of the region.
        found: u32,
        /// Layout version of this program.
        known: u32,
    },
    /// The region was created for a device of another shape.
    #[error("in-flight region is for {queues} queues of {size}, not for {asked_queues} of {asked}")]
    Shape {
        /// Number of queues in the region.
        queues: u16,
        /// Entries of each queue in the region.
        size: u16,
        /// Number of queues that the front-end gave.
        asked_queues: u16,
        /// Entries of each queue that the front-end gave.
        asked: u16,
    },
    /// The ring has more entries than the region.
    #[error("ring of {ring} entries does not fit an in-flight region for {size}")]
    TooSmall {
        /// Entries of the ring.
        ring: u16,
        /// Entries of the region.
        size: u16,
    },
    /// The region has contents that this program never writes.
    #[error("in-flight region is damaged: {what} ({value})")]
    Damaged {
        /// Kind of damage.
        what: &'static str,
        /// Value found.
        value: u64,
    },
    /// The region belongs to another ring, or to this ring before it was reset.
    #[error(
        "in-flight region is for a ring at used index {region}, this one is at {ring}; \
         the front-end must ask for a new region when it resets the device"
    )]
    OtherRing {
        /// Used index that the region records.
        region: u16,
        /// Used index of the ring.
        ring: u16,
    },
    /// The region records more requests than the ring has open: the ring was reset without it.
    #[error(
        "in-flight region records {recorded} requests, the ring has {open} open; \
         the front-end must ask for a new region when it resets the device"
    )]
    Stale {
        /// Number of requests recorded.
        recorded: u16,
        /// Number of requests that were offered and not completed.
        open: u16,
    },
}
