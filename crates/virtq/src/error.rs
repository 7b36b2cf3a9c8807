//! Violations of the virtqueue rules.

use memory::MemoryError;

use crate::InflightError;

/// Reason why a ring is no longer served. The ring stays failed until the front-end starts it
/// again.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The ring size is 0, no power of two, or above [`crate::MAX_QUEUE_SIZE`].
    #[error("ring size {size} is not a power of two from 1 to 32768")]
    BadSize {
        /// Requested size in entries.
        size: u16,
    },
    /// A part of the ring, or a buffer that the device needs for its answer, is not in guest memory.
    #[error("{part} is not usable")]
    Memory {
        /// Part of the ring, or `buffer`.
        part: &'static str,
        /// Address range, and the problem with it.
        #[source]
        source: MemoryError,
    },
    /// The in-flight region contradicts the ring or itself. The ring did not start.
    #[error("in-flight requests of the former process cannot be recovered")]
    Inflight(#[from] InflightError),
    /// The available index advanced by more entries than the ring has.
    #[error("available index jumped from {from} to {to} in a ring of {size}")]
    IndexJump {
        /// Index to be served next.
        from: u16,
        /// Index that the driver published.
        to: u16,
        /// Entries in the ring.
        size: u16,
    },
    /// A head or next index is at or above the table's size.
    #[error("descriptor {index} is outside a table of {size}")]
    BadIndex {
        /// Index of the descriptor.
        index: u16,
        /// Entries in the table.
        size: u32,
    },
    /// The head is already in flight.
    #[error("descriptor {head} was made available while it was in flight")]
    Busy {
        /// First descriptor.
        head: u16,
    },
    /// The chain loops, or is longer than allowed.
    #[error("chain at descriptor {head} loops or has more than {limit} descriptors")]
    TooLong {
        /// First descriptor.
        head: u16,
        /// Most descriptors allowed.
        limit: u32,
    },
    /// The lengths of a chain add up to 4 GiB or more.
    #[error("chain at descriptor {head} has 4 GiB or more")]
    TooLarge {
        /// First descriptor.
        head: u16,
    },
    /// A descriptor has length 0.
    #[error("chain at descriptor {head} has an empty descriptor")]
    Empty {
        /// First descriptor.
        head: u16,
    },
    /// A readable descriptor follows a writable one (virtio 1.2, 2.7.4.2).
    #[error("chain at descriptor {head} has a readable descriptor behind a writable one")]
    Order {
        /// First descriptor.
        head: u16,
    },
    /// An indirect table has a bad length, is nested, or has a next flag (virtio 1.2, 2.7.5.3).
    #[error("chain at descriptor {head} has a malformed indirect table")]
    Indirect {
        /// First descriptor.
        head: u16,
    },
}

impl RingError {
    /// Returns a sentence for logs on whose fault it is, and what ends it.
    pub fn summary(&self) -> &'static str {
        match self {
            Self::Memory { source: MemoryError::Outside { .. }, .. } => {
                "the ring is stopped, because it needs memory that is not shared; the guest's \
                 driver must reset the device"
            }
            _ => "the guest's driver broke the ring; it must reset the device",
        }
    }
}
