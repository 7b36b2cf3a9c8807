//! Cancellation of an operation.

use std::sync::Arc;

use tokio::sync::watch;

/// Strength of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CancelLevel {
    /// Not cancelled.
    None,
    /// No new step begins.
    Cancelled,
    /// Running steps are abandoned if they do not end soon.
    Preempted,
}

/// Cancellation token of an operation. Every clone can cancel it. A cancellation is final.
#[derive(Clone, Debug)]
pub struct CancelToken(Arc<watch::Sender<CancelLevel>>);

impl Default for CancelToken {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(CancelLevel::None)))
    }
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the operation: no new step begins.
    pub fn cancel(&self) {
        self.raise(CancelLevel::Cancelled);
    }

    /// Preempts the operation for another that must not wait.
    pub(crate) fn preempt(&self) {
        self.raise(CancelLevel::Preempted);
    }

    /// Returns whether the operation is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.level() > CancelLevel::None
    }

    /// Waits until the operation is cancelled.
    pub async fn cancelled(&self) {
        self.reached(CancelLevel::Cancelled).await;
    }

    pub(crate) fn level(&self) -> CancelLevel {
        *self.0.borrow()
    }

    /// Waits until the cancellation is at least as strong as `level`.
    pub(crate) async fn reached(&self, level: CancelLevel) {
        // `self` owns the sender, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|now| *now >= level).await;
    }

    fn raise(&self, to: CancelLevel) {
        self.0.send_if_modified(|now| {
            let rises = to > *now;
            *now = to.max(*now);
            rises
        });
    }
}

impl CancelLevel {
    /// Returns the next stronger level.
    pub(crate) fn stronger(self) -> Option<Self> {
        match self {
            Self::None => Some(Self::Cancelled),
            Self::Cancelled => Some(Self::Preempted),
            Self::Preempted => None,
        }
    }
}
