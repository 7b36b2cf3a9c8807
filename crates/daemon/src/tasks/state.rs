//! How far a task is.
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
//! Who asks for a cancel changes no status: clients wait while a task is `pending`, and it is
//! under way until it has ended.

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Under way.
    Pending,
    /// It did what it was asked.
    Success,
    /// It did not.
    Failure,
    /// Under way to its early end; only clients say so of tasks of their own.
    Cancelling,
    /// It ended early.
    Cancelled,
}

impl Status {
    /// All of them, as the API lists them.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Success, Self::Failure, Self::Cancelling, Self::Cancelled];

    /// As it is on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// It is not under way any more.
    pub fn ended(self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Cancelled)
    }

    /// Whether a task of this status may become one of that. A task ends once.
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
