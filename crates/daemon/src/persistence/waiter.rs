//! Waits until changes are on disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use tokio::sync::watch;
use xenapi::{ApiError, codes};

use super::Shared;
use crate::db::Db;

/// Waits until changes are on disk, for whoever does not hold what stores them. Clones wait for the
/// same.
#[derive(Clone, Debug)]
pub struct PersistenceWaiter {
    pub(super) db: Db,
    pub(super) shared: Arc<Shared>,
    /// Told after each batch; closed when nobody stores any more.
    pub(super) settled: watch::Receiver<()>,
    pub(super) wake: SyncSender<()>,
}

impl PersistenceWaiter {
    /// As [`Persistence::wait_attempt`](super::Persistence::wait_attempt).
    ///
    /// # Errors
    /// `INTERNAL_ERROR`: nobody stores any more.
    pub async fn tried(&self) -> Result<(), ApiError> {
        let kept = self.db.last_persistent();
        let is_tried = || self.shared.tried.load(Ordering::Acquire) >= kept;
        if !is_tried() {
            // What was taken back is tried again by itself, but only after a while.
            let _ = self.wake.try_send(());
        }
        self.once(is_tried).await
    }

    /// Waits for what is only so after a batch.
    pub(super) async fn once(&self, is_so: impl Fn() -> bool) -> Result<(), ApiError> {
        let mut settled = self.settled.clone();
        settled.mark_unchanged();
        while !is_so() {
            if settled.changed().await.is_err() {
                return Err(codes::internal("nobody stores changes any more: restart the daemon"));
            }
        }
        Ok(())
    }
}
