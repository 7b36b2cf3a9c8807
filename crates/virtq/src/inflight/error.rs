//! Why an in-flight region is not used.

use memory::MemoryError;

/// Why an in-flight region is not used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// Nobody needs a region like that.
    #[error(
        "in-flight region for {queues} queues of {size}: 1 to 256 queues of 1 to 32768 are possible"
    )]
    Bounds {
        /// Queues asked for.
        queues: u16,
        /// Entries of each.
        size: u16,
    },
    /// The front-end's description of the region cannot be.
    #[error(
        "in-flight region of {bytes} bytes at offset {offset} of its file cannot be used; \
         {need} bytes are needed, at a multiple of 64 and below 1 GiB"
    )]
    Window {
        /// Offset in the file.
        offset: u64,
        /// Bytes that the front-end gave it.
        bytes: u64,
        /// Bytes that its queues take.
        need: u64,
    },
    /// Its file cannot be mapped.
    #[error("in-flight region cannot be mapped")]
    Memory(#[from] MemoryError),
    /// Neither ours nor fresh.
    #[error("in-flight region was not made by this program; the front-end must ask for a new one")]
    Foreign,
    /// Written by another version of this program.
    #[error(
        "in-flight region has layout version {found}, this program knows {known}; \
         run the version that wrote it, or reset the device"
    )]
    Version {
        /// In the region.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Made for another device.
    #[error("in-flight region is for {queues} queues of {size}, not for {asked_queues} of {asked}")]
    Shape {
        /// Queues it has.
        queues: u16,
        /// Entries of each.
        size: u16,
        /// Queues that the front-end says.
        asked_queues: u16,
        /// Entries that the front-end says.
        asked: u16,
    },
    /// The ring has more entries than the region keeps.
    #[error("ring of {ring} entries does not fit an in-flight region for {size}")]
    TooSmall {
        /// Entries of the ring.
        ring: u16,
        /// Entries of the region.
        size: u16,
    },
    /// An entry that we never write.
    #[error("in-flight region is damaged: {what} ({value})")]
    Damaged {
        /// What is wrong.
        what: &'static str,
        /// What was found.
        value: u64,
    },
    /// It follows another ring, or this one before it was reset.
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
    /// More requests are recorded than the ring has open: it was reset without the region.
    #[error(
        "in-flight region records {recorded} requests, the ring has {open} open; \
         the front-end must ask for a new region when it resets the device"
    )]
    Stale {
        /// Requests recorded.
        recorded: u16,
        /// Requests that were offered and not completed.
        open: u16,
    },
}
