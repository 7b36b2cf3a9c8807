//! Calls that run as tasks.

use std::sync::Arc;

use toolstack::boxed_future::BoxFuture;
use toolstack::machines::CancelToken;
use xenapi::table::task;
use xenapi::{ApiError, NULL_REF, Value, codes};

use super::{RunningTask, end, record};
use crate::app::AppState;
use crate::db::{Ref, Tx};
use crate::dispatch::limits::CallPermit;
use crate::dispatch::{CallResult, Ctx};

/// Least progress that is recorded, because each update is an event to all subscribers.
const PROGRESS_STEP: f64 = 0.01;

/// Handle of a task, for the handler of its call.
#[derive(Clone, Debug)]
pub struct TaskHandle {
    pub(super) app: Arc<AppState>,
    pub(super) reference: Ref,
    pub(super) cancel: CancelToken,
}

impl TaskHandle {
    /// Returns the reference of the task.
    pub fn reference(&self) -> &Ref {
        &self.reference
    }

    /// Returns the token by which a client cancels the task.
    pub fn cancel(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Reports the progress, from 0 to 1. It never decreases.
    pub fn progress(&self, part: f64) {
        let part = part.clamp(0.0, 1.0);
        let written = self.app.db.write_observed(|tx| {
            let was = match tx.view().get(&self.reference, task::Field::progress)? {
                Value::Float(was) => *was,
                _ => 0.0,
            };
            if part < was + PROGRESS_STEP {
                return Ok(());
            }
            tx.set(&self.reference, task::Field::progress, Value::Float(part))
        });
        // A destroyed task has no progress.
        drop(written);
    }

    /// Makes the task no longer cancellable.
    pub fn no_cancel(&self) {
        let none = Value::Set(Vec::new());
        let written = self
            .app
            .db
            .write_observed(|tx| tx.set(&self.reference, task::Field::allowed_operations, none));
        drop(written);
    }
}

/// Progress of work that reports it very often: only steps that are recorded reach the records.
#[derive(Debug)]
pub(crate) struct ProgressMeter<'a> {
    ctx: &'a Ctx,
    recorded: f64,
}

impl<'a> ProgressMeter<'a> {
    /// Creates a meter that reports to the task of a context.
    pub(crate) fn new(ctx: &'a Ctx) -> Self {
        Self { ctx, recorded: 0.0 }
    }

    /// Reports the progress, from 0 to 1.
    pub(crate) fn report(&mut self, part: f64) {
        if part >= self.recorded + PROGRESS_STEP {
            self.recorded = part;
            self.ctx.progress(part);
        }
    }
}

/// Whether a client may cancel a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellable {
    /// Yes, until [`TaskHandle::no_cancel`].
    Taken,
    /// No.
    Refused,
}

/// Starts a call as a task and returns the task.
///
/// The record is stored first, so that a client finds it after a restart. If it cannot be stored,
/// the call runs anyway, because it may free space or stop a VM.
///
/// # Errors
/// `TOO_MANY_PENDING_TASKS` if no permit is free.
pub async fn begin(
    ctx: Ctx,
    cancellable: Cancellable,
    run: impl FnOnce(Ctx) -> BoxFuture<'static, CallResult> + Send + 'static,
) -> CallResult {
    let call_permit = Arc::new(ctx.app.call_limiter.take(&ctx.session.reference)?);
    // A separate task, so that the operation continues if the client disconnects.
    let entered = tokio::spawn(enter(ctx, call_permit, cancellable, run));
    entered.await.unwrap_or_else(|_| Err(codes::internal("the call panicked; see the server log")))
}

/// Creates a task for work that the server does by itself. Clients with the role pool-operator can
/// cancel it with this token. The caller ends it.
///
/// # Errors
/// Only if the class table is inconsistent, which is a bug.
pub(crate) fn of_server(
    app: &Arc<AppState>,
    label: &str,
    description: &str,
    cancel: CancelToken,
) -> Result<TaskHandle, ApiError> {
    let reference = app.db.write_observed(|tx| {
        let it = record::make(tx, app, label, description)?;
        let allowed = Value::Set(vec![Value::text("cancel")]);
        tx.set(&it, task::Field::allowed_operations, allowed)?;
        let session = Ref::from(NULL_REF);
        let running_task = RunningTask {
            cancel: Some(cancel.clone()),
            doomed: false,
            bounded: false,
            session,
            _place: None,
        };
        app.tasks.enter(&it, "", running_task);
        Ok(it)
    })?;
    Ok(TaskHandle { app: app.clone(), reference, cancel })
}

/// Creates and stores the record, and starts the call.
async fn enter(
    mut ctx: Ctx,
    call_permit: Arc<CallPermit>,
    cancellable: Cancellable,
    run: impl FnOnce(Ctx) -> BoxFuture<'static, CallResult> + Send + 'static,
) -> CallResult {
    let app = ctx.app.clone();
    let cancel = CancelToken::new();
    let make = |tx: &mut Tx<'_>| {
        let it = record::make(tx, &app, &format!("Async.{}", ctx.name()), "")?;
        if cancellable == Cancellable::Taken {
            let cancel = Value::Set(vec![Value::text("cancel")]);
            tx.set(&it, task::Field::allowed_operations, cancel)?;
        }
        let session = ctx.session.reference.clone();
        let (cancel, call_permit) = (Some(cancel.clone()), call_permit.clone());
        let running_task = RunningTask {
            cancel,
            doomed: false,
            bounded: false,
            session,
            _place: Some(call_permit),
        };
        app.tasks.enter(&it, &ctx.session.user, running_task);
        Ok((it, tx.generation()))
    };
    let (mut it, generation) = app.db.change(make)?;
    if app.wait_persisted(generation).await.is_err() {
        app.tasks.leave(&it);
        (it, _) = app.db.write_observed(make)?;
    }
    drop(call_permit);
    ctx.task = Some(TaskHandle { app: app.clone(), reference: it.clone(), cancel });
    let run = run(ctx.clone());
    let carried = tokio::spawn(async move {
        let answer = run.await;
        ctx.stored().await.and(answer)
    });
    let ends = it.clone();
    tokio::spawn(async move {
        let broken = || Err(codes::internal("the call panicked; see the server log"));
        let answer = carried.await.unwrap_or_else(|_| broken());
        // This fails only if the record was destroyed elsewhere.
        let _ = end(&app, &ends, &answer);
    });
    Ok(it.value())
}
