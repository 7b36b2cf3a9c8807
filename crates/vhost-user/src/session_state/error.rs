//! Why a session cannot go on from a state.

use crate::error::Refusal;

/// Why a session cannot be written down, or not go on from what was written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Written by a program that is too new, or too old.
    #[error("session state has format {found}, formats {oldest} to {newest} are known here")]
    Version {
        /// Format of the state; 0 when it names none.
        found: u32,
        /// Oldest format that is known.
        oldest: u32,
        /// Newest format that is known.
        newest: u32,
    },
    /// The data has another form than its format.
    #[error("session state is malformed")]
    Format(#[from] serde_json::Error),
    /// A descriptor is named that did not come, or twice.
    #[error("session state names descriptor {index}, which did not come or is named twice")]
    Descriptor {
        /// Its place in the list.
        index: u16,
    },
    /// Descriptors came that nothing is said about.
    #[error("session state leaves {count} descriptors unnamed")]
    Unnamed {
        /// How many.
        count: usize,
    },
    /// More descriptors than can be named.
    #[error("session has too many descriptors")]
    TooMany,
    /// Memory that no other process can map.
    #[error("memory of the session has no descriptor and cannot be handed on")]
    Unshared,
    /// The device has another number of queues.
    #[error("session has {needs} queues, the device {has}")]
    Queues {
        /// Queues of the device.
        has: usize,
        /// Queues of the session.
        needs: usize,
    },
    /// A ring ran, but not everything that it takes is in the state.
    #[error("queue {index} ran, but not all of its ring is known")]
    Incomplete {
        /// Queue index.
        index: usize,
    },
    /// The process may have no more descriptors.
    #[error("cannot make a signal for the session; raise the limit of open files")]
    Os(#[source] std::io::Error),
    /// A part of it is refused, as it would be in a message.
    #[error("session state is refused")]
    Refused(#[from] Refusal),
}
