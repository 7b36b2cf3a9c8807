//! Errors of session states.

use crate::error::Refusal;

impl StateError {
    /// Returns whether the front-end has caused this since its session was frozen or began. It has
    /// truncated, sealed or overwritten memory that another process would have to map. Then only its
    /// own session cannot continue.
    pub fn is_front_end_fault(&self) -> bool {
        match self {
            Self::Refused(Refusal::Memory(error)) => error.is_owner_fault(),
            Self::Refused(Refusal::Inflight(error)) => error.is_owner_fault(),
            _ => false,
        }
    }
}

/// Reason why a session cannot be encoded, or cannot continue from its encoded state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The program that encoded the state is too new or too old.
    #[error("session state has format {found}, formats {oldest} to {newest} are known here")]
    Version {
        /// Format of the state; 0 if the state names none.
        found: u32,
        /// Oldest format that is supported.
        oldest: u32,
        /// Newest format that is supported.
        newest: u32,
    },
    /// The data does not follow its format.
    #[error("session state is malformed")]
    Format(#[from] serde_json::Error),
    /// The state names a descriptor that was not received, or names it twice.
    #[error("session state names descriptor {index}, which is missing or is named twice")]
    Descriptor {
        /// Position in the list of descriptors.
        index: u16,
    },
    /// The state does not name all received descriptors.
    #[error("session state leaves {count} descriptors unnamed")]
    Unnamed {
        /// Number of unnamed descriptors.
        count: usize,
    },
    /// There are more descriptors than indices.
    #[error("session has too many descriptors")]
    TooMany,
    /// No other process can map the memory.
    #[error("memory of the session has no descriptor and cannot be handed over")]
    Unshared,
    /// The device has another number of queues.
    #[error("session has {needs} queues, the device {has}")]
    Queues {
        /// Number of queues of the device.
        has: usize,
        /// Number of queues of the session.
        needs: usize,
    },
    /// A ring ran, but the state lacks some of its settings.
    #[error("queue {index} ran, but not all of its ring is known")]
    Incomplete {
        /// Queue index.
        index: usize,
    },
    /// The process may open no more descriptors.
    #[error("cannot make a signal for the session; raise the limit of open files")]
    Os(#[source] std::io::Error),
    /// A part of the state is refused, as it would be in a message.
    #[error("session state is refused")]
    Refused(#[from] Refusal),
}
