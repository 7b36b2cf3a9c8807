//! What a handler gets beside its parameters, and how a call's changes are stored and followed.

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

/// How long a call waits for what is done after its change.
const AFTER_DEADLINE: Duration = Duration::from_secs(30);

/// What is done after a change: it ends as told here, whoever waits.
type AfterCommit = JoinHandle<Result<(), ApiError>>;

/// What a handler gets beside its parameters.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// Everything.
    pub app: Arc<AppState>,
    /// Who calls.
    pub session: Session,
    /// The task by which it is carried out, if it is a task.
    pub task: Option<TaskHandle>,
    /// What was called.
    pub method: Method,
    /// Generations of its changes.
    changed: Arc<Mutex<Vec<u64>>>,
    /// What is done after its changes, before it is answered.
    after: Arc<Mutex<Vec<AfterCommit>>>,
}

impl Ctx {
    /// For a call of this session.
    pub fn new(app: &Arc<AppState>, session: Session, method: Method) -> Self {
        let (changed, after) = Default::default();
        Self { app: app.clone(), session, task: None, method, changed, after }
    }

    /// The same call, as one of this method.
    pub(crate) fn as_method(&self, method: Method) -> Self {
        Self { method, ..self.clone() }
    }

    /// The name of what was called, as `VM.start`.
    pub fn name(&self) -> String {
        self.method.name()
    }

    /// Looks at the records.
    pub fn read<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        self.app.db.read(look)
    }

    /// Changes the records. The call is answered after that is stored.
    ///
    /// # Errors
    /// That of `make`.
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
        // One that wrote nothing has no generation: the next one has it.
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).extend(generation);
        Ok(made)
    }

    /// As [`Ctx::change`], and ends when that is stored: for who has something to put right if it
    /// cannot be.
    ///
    /// # Errors
    /// That of `make`, and those of [`Ctx::wait_persisted`].
    pub async fn change_stored<T>(
        &self,
        make: impl FnOnce(&mut Tx<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let made = self.change(make)?;
        self.stored().await?;
        Ok(made)
    }

    /// Ends when all that this call has changed is stored, and what was noted until now has been
    /// tried. Each change is looked at: one that came later may have found room where an earlier one
    /// had none.
    ///
    /// # Errors
    /// Some of it could not be stored, and has been taken back.
    pub async fn stored(&self) -> Result<(), ApiError> {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for generation in changed {
            self.app.wait_persisted(generation).await?;
        }
        self.app.persistence.wait_attempt().await
    }

    /// Does something when all that this call has changed until now is stored or taken back. A short
    /// call is answered after that, and with its error, but waits for it no longer than
    /// [`AFTER_DEADLINE`]. It is done when the caller goes away, too.
    pub(crate) fn after_commit(
        &self,
        work: impl Future<Output = Result<(), ApiError>> + Send + 'static,
    ) {
        let done = self.after_commit_detached(work);
        self.after.lock().unwrap_or_else(PoisonError::into_inner).push(done);
    }

    /// As [`Ctx::after_commit`], and the call is answered before: for what may take long, and has another way
    /// to tell how it went.
    pub(crate) fn after_commit_detached(
        &self,
        work: impl Future<Output = Result<(), ApiError>> + Send + 'static,
    ) -> AfterCommit {
        let ctx = self.clone();
        tokio::spawn(async move {
            // The call is told of what is taken back by itself.
            let _stored = ctx.stored().await;
            work.await
        })
    }

    /// Ends when what is done [`after`](Ctx::after_commit) is done.
    pub(super) async fn wait_after_commit(&self) -> Result<(), ApiError> {
        let after = std::mem::take(&mut *self.after.lock().unwrap_or_else(PoisonError::into_inner));
        let all = async {
            for one in after {
                one.await.unwrap_or_else(|_| Err(broke_off()))?;
            }
            Ok(())
        };
        let late = "it is recorded; whether it is in force yet is not known, see its status";
        timeout(AFTER_DEADLINE, all).await.unwrap_or_else(|_| Err(codes::internal(late)))
    }

    /// Says how far the call is, from 0 to 1.
    pub fn progress(&self, part: f64) {
        if let Some(task) = &self.task {
            task.progress(part);
        }
    }
}
