//! Context of a handler: its session, its task, and how its changes are persisted and followed up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use xenapi::table::resolve::Method;
use xenapi::{ApiError, codes};

use super::broke_off;
use crate::app::AppState;
use crate::db::{Tx, View};
use crate::sessions::Session;
use crate::tasks::TaskHandle;

/// Longest time that a call waits for work after its commit.
const AFTER_DEADLINE: Duration = Duration::from_secs(30);

/// Background work after a commit. It runs to its end even if the caller stops waiting.
type AfterCommit = JoinHandle<Result<(), ApiError>>;

/// Context of a handler.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// Shared state of the daemon.
    pub app: Arc<AppState>,
    /// Session of the caller.
    pub session: Session,
    /// Task of the call, if the call runs as a task.
    pub task: Option<TaskHandle>,
    /// Method of the call.
    pub method: Method,
    /// Generations of the call's changes.
    changed: Arc<Mutex<Vec<u64>>>,
    /// Work after the commit for which the answer waits.
    after: Arc<Mutex<Vec<AfterCommit>>>,
}

impl Ctx {
    /// Creates the context of a call in this session.
    pub fn new(app: &Arc<AppState>, session: Session, method: Method) -> Self {
        let (changed, after) = Default::default();
        Self { app: app.clone(), session, task: None, method, changed, after }
    }

    /// Returns the same context with another method.
    pub(crate) fn as_method(&self, method: Method) -> Self {
        Self { method, ..self.clone() }
    }

    /// Returns the name of the method, such as `VM.start`.
    pub fn name(&self) -> String {
        self.method.name()
    }

    /// Reads the records.
    pub fn read<T>(&self, reader: impl FnOnce(&View<'_>) -> T) -> T {
        self.app.db.read(reader)
    }

    /// Makes a requested change. The call is answered after it is persisted.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn change<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut generation = None;
        let made = self.app.db.change(|tx| {
            let made = make(tx)?;
            if tx.touched().next().is_some() {
                generation = Some(tx.generation());
            }
            Ok(made)
        })?;
        // A change without writes has no generation. The next change gets that number.
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).extend(generation);
        Ok(made)
    }

    /// Makes a requested change and waits until it is persisted. For callers that must clean up if
    /// it cannot be.
    ///
    /// # Errors
    /// The error of `make`, and those of [`Ctx::stored`].
    pub async fn change_stored<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let made = self.change(make)?;
        self.stored().await?;
        Ok(made)
    }

    /// Waits until all changes of this call are persisted and the writer has tried to store the
    /// observed changes so far. Each change is checked, because a later change may fit where an
    /// earlier one did not.
    ///
    /// # Errors
    /// `OUT_OF_SPACE` if a change could not be persisted. It has been rolled back.
    pub async fn stored(&self) -> Result<(), ApiError> {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for generation in changed {
            self.app.wait_persisted(generation).await?;
        }
        self.app.persistence.wait_attempt().await
    }

    /// Runs work after all changes of this call are persisted or rolled back. The answer of a short
    /// call waits for the work, at most [`AFTER_DEADLINE`], and returns its error. The work
    /// continues if the client disconnects.
    pub(crate) fn after_commit(
        &self,
        work: impl Future<Output = Result<(), ApiError>> + Send + 'static,
    ) {
        let done = self.after_commit_detached(work);
        self.after.lock().unwrap_or_else(PoisonError::into_inner).push(done);
    }

    /// Runs work like [`Ctx::after_commit`], but the call is answered without waiting for it. For
    /// work that takes long and reports its result elsewhere.
    pub(crate) fn after_commit_detached(
        &self,
        work: impl Future<Output = Result<(), ApiError>> + Send + 'static,
    ) -> AfterCommit {
        let ctx = self.clone();
        tokio::spawn(async move {
            // The call itself reports changes that were rolled back.
            let _stored = ctx.stored().await;
            work.await
        })
    }

    /// Waits until all work of [`Ctx::after_commit`] has ended.
    pub(super) async fn wait_after_commit(&self) -> Result<(), ApiError> {
        let after = std::mem::take(&mut *self.after.lock().unwrap_or_else(PoisonError::into_inner));
        let all = async {
            for one in after {
                one.await.unwrap_or_else(|_| Err(broke_off()))?;
            }
            Ok(())
        };
        let late = "the setting is recorded, but may not be in force yet; see the device's status";
        timeout(AFTER_DEADLINE, all).await.unwrap_or_else(|_| Err(codes::internal(late)))
    }

    /// Reports the progress of the call, from 0 to 1.
    pub fn progress(&self, part: f64) {
        if let Some(task) = &self.task {
            task.progress(part);
        }
    }
}
