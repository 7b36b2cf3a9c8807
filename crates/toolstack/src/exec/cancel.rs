//! A wish that an operation ends.

use std::sync::Arc;

use tokio::sync::watch;

/// How strong the wish is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CancelLevel {
    /// Nobody wishes it.
    GoOn,
    /// Nothing new is begun.
    Cancelled,
    /// What runs is left behind if it does not end soon.
    Overtaken,
}

/// Ends an operation: whoever has a clone can. It cannot be taken back.
#[derive(Clone, Debug)]
pub struct CancelToken(Arc<watch::Sender<CancelLevel>>);

impl Default for CancelToken {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(CancelLevel::GoOn)))
    }
}

impl CancelToken {
    /// One that nobody has used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing new is begun from here on.
    pub fn cancel(&self) {
        self.raise(CancelLevel::Cancelled);
    }

    /// Something has come that must not wait.
    pub(crate) fn preempt(&self) {
        self.raise(CancelLevel::Overtaken);
    }

    /// Whether somebody has used it.
    pub fn is_cancelled(&self) -> bool {
        self.level() > CancelLevel::GoOn
    }

    /// Ends when somebody has used it.
    pub async fn cancelled(&self) {
        self.reached(CancelLevel::Cancelled).await;
    }

    pub(crate) fn level(&self) -> CancelLevel {
        *self.0.borrow()
    }

    /// Ends when the wish is at least as strong as this.
    pub(crate) async fn reached(&self, level: CancelLevel) {
        // Its sender is `self`, so the wait cannot fail.
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
    /// The next stronger wish.
    pub(crate) fn stronger(self) -> Option<Self> {
        match self {
            Self::GoOn => Some(Self::Cancelled),
            Self::Cancelled => Some(Self::Overtaken),
            Self::Overtaken => None,
        }
    }
}
