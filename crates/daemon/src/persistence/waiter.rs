//! Waits for persistence.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use tokio::sync::watch;
use xenapi::{ApiError, codes};

use super::Shared;
use crate::db::Db;

/// Waits for changes to be on disk, without ownership of the writer. Clones wait for the same
/// writer.
#[derive(Clone, Debug)]
pub struct PersistenceWaiter {
    pub(super) db: Db,
    pub(super) shared: Arc<Shared>,
    /// Notified after each batch. Closed when the writer ends.
    pub(super) settled: watch::Receiver<()>,
    pub(super) wake: SyncSender<()>,
}

impl PersistenceWaiter {
    /// Does the work of [`Persistence::wait_attempt`](super::Persistence::wait_attempt).
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if the writer has died.
    pub async fn tried(&self) -> Result<(), ApiError> {
        let kept = self.db.last_persistent();
        let is_tried = || self.shared.tried.load(Ordering::Acquire) >= kept;
        if !is_tried() {
            // A failed batch is retried only after a delay, so wake the writer now.
            let _ = self.wake.try_send(());
        }
        self.once(is_tried).await
    }

    /// Waits until a condition holds that only a batch can change.
    pub(super) async fn once(&self, is_so: impl Fn() -> bool) -> Result<(), ApiError> {
        let mut settled = self.settled.clone();
        settled.mark_unchanged();
        while !is_so() {
            if settled.changed().await.is_err() {
                return Err(codes::internal("the database writer failed: restart the daemon"));
            }
        }
        Ok(())
    }
}
