//! A wish that an operation ends.

use std::sync::Arc;

use tokio::sync::watch;

/// How strong the wish is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Nobody wishes it.
    GoOn,
    /// Nothing new is begun.
    Cancelled,
    /// What runs is left behind if it does not end soon.
    Overtaken,
}

/// Ends an operation: whoever has a clone can. It cannot be taken back.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<Level>>);

impl Default for Cancel {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Level::GoOn)))
    }
}

impl Cancel {
    /// One that nobody has used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing new is begun from here on.
    pub fn cancel(&self) {
        self.raise(Level::Cancelled);
    }

    /// Something has come that must not wait.
    pub(crate) fn overtake(&self) {
        self.raise(Level::Overtaken);
    }

    /// Whether somebody has used it.
    pub fn is_cancelled(&self) -> bool {
        self.level() > Level::GoOn
    }

    /// Ends when somebody has used it.
    pub async fn cancelled(&self) {
        self.reached(Level::Cancelled).await;
    }

    pub(crate) fn level(&self) -> Level {
        *self.0.borrow()
    }

    /// Ends when the wish is at least as strong as this.
    pub(crate) async fn reached(&self, level: Level) {
        // Its sender is `self`, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|now| *now >= level).await;
    }

    fn raise(&self, to: Level) {
        self.0.send_if_modified(|now| {
            let rises = to > *now;
            *now = to.max(*now);
            rises
        });
    }
}

impl Level {
    /// The next stronger wish.
    pub(crate) fn stronger(self) -> Option<Self> {
        match self {
            Self::GoOn => Some(Self::Cancelled),
            Self::Cancelled => Some(Self::Overtaken),
            Self::Overtaken => None,
        }
    }
}
