//! How a ring can break the rules.

use memory::MemoryError;

use crate::InflightError;

/// Why a ring is no longer served. It stays so until the front-end starts it anew.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Ring size that is no power of two, 0, or above [`crate::MAX_QUEUE_SIZE`].
    #[error("ring size {size} is not a power of two from 1 to 32768")]
    BadSize {
        /// What was asked for.
        size: u16,
    },
    /// A part of the ring, or a buffer, is not in guest memory.
    #[error("{part} is not usable")]
    Memory {
        /// Which part.
        part: &'static str,
        /// Where it was said to be.
        #[source]
        source: MemoryError,
    },
    /// What its in-flight region says cannot be; the ring did not start.
    #[error("requests of a former life cannot be recovered")]
    Inflight(#[from] InflightError),
    /// The available index ran ahead by more than the ring holds.
    #[error("available index jumped from {from} to {to} in a ring of {size}")]
    IndexJump {
        /// Index served next.
        from: u16,
        /// Index that the driver published.
        to: u16,
        /// Entries in the ring.
        size: u16,
    },
    /// A head or next index at or above the table's size.
    #[error("descriptor {index} is outside a table of {size}")]
    BadIndex {
        /// The index.
        index: u16,
        /// Entries in the table.
        size: u32,
    },
    /// The head is in flight already.
    #[error("descriptor {head} was made available while it was in flight")]
    Busy {
        /// The head.
        head: u16,
    },
    /// A chain that loops, or is longer than allowed.
    #[error("chain at descriptor {head} loops or has more than {limit} descriptors")]
    TooLong {
        /// First descriptor.
        head: u16,
        /// The limit.
        limit: u32,
    },
    /// The lengths of a chain add up to 4 GiB or more.
    #[error("chain at descriptor {head} has 4 GiB or more")]
    TooLarge {
        /// First descriptor.
        head: u16,
    },
    /// A descriptor of length 0.
    #[error("chain at descriptor {head} has an empty descriptor")]
    Empty {
        /// First descriptor.
        head: u16,
    },
    /// A readable descriptor behind a writable one (virtio 1.2, 2.7.4.2).
    #[error("chain at descriptor {head} has a readable descriptor behind a writable one")]
    Order {
        /// First descriptor.
        head: u16,
    },
    /// An indirect table of a bad length, nested, or with a next flag (virtio 1.2, 2.7.5.3).
    #[error("chain at descriptor {head} has a malformed indirect table")]
    Indirect {
        /// First descriptor.
        head: u16,
    },
}
