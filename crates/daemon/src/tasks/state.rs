//! Status of a task.
//!
//! ```text
//!             +---------+   its client says so   +------------+
//!     ------> | pending | ---------------------> | cancelling |
//!             +---------+                        +------------+
//!                  |   ended                          | ended
//!                  v                                  v
//!        +---------+---------+-----------+
//!        | success | failure | cancelled |   ended for good
//!        +---------+---------+-----------+
//! ```
//! A cancel request changes no status. Clients wait while a task is `pending`, and it stays so
//! until it has ended.

/// Status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Under way.
    Pending,
    /// Succeeded.
    Success,
    /// Failed.
    Failure,
    /// Being cancelled. Only clients set this, for tasks that they carry out.
    Cancelling,
    /// Cancelled.
    Cancelled,
}

impl Status {
    /// All statuses, in the order of the API.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Success, Self::Failure, Self::Cancelling, Self::Cancelled];

    /// Returns the name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the status of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// Returns whether the task has ended.
    pub fn ended(self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Cancelled)
    }

    /// Returns whether a task may change from this status to `next`. A task ends once.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Pending => next != Self::Pending,
            Self::Cancelling => next.ended(),
            Self::Success | Self::Failure | Self::Cancelled => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use xenapi::table::enums::TASK_STATUS_TYPE;

    use super::Status::{Cancelled, Cancelling, Failure, Pending, Success};
    use super::*;

    #[test]
    fn a_task_ends_once() {
        let may = [
            (Pending, Success),
            (Pending, Failure),
            (Pending, Cancelled),
            (Pending, Cancelling),
            (Cancelling, Success),
            (Cancelling, Failure),
            (Cancelling, Cancelled),
        ];
        for from in Status::ALL {
            for to in Status::ALL {
                assert_eq!(from.may_become(to), may.contains(&(from, to)), "{from:?} {to:?}");
            }
        }
    }

    #[test]
    fn names_are_those_of_the_api() {
        assert_eq!(Status::ALL.map(Status::name), *TASK_STATUS_TYPE.words);
        for status in Status::ALL {
            assert_eq!(Status::parse(status.name()), Some(status));
        }
        assert_eq!(Status::parse("Pending"), None);
    }
}
