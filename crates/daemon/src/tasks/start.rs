//! A call that is carried out as a task.

use std::sync::Arc;

use toolstack::boxed_future::BoxFuture;
use toolstack::machines::CancelToken;
use xenapi::table::task;
use xenapi::{Value, codes};

use super::{RunningTask, end, record};
use crate::app::AppState;
use crate::db::{Ref, Tx};
use crate::dispatch::limits::CallPermit;
use crate::dispatch::{CallResult, Ctx};

/// Least part by which a task gets further before that is told: each telling is an event for
/// everybody who watches.
const PROGRESS_STEP: f64 = 0.01;

/// The task by which a call is carried out, for who carries it out.
#[derive(Clone, Debug)]
pub struct TaskHandle {
    app: Arc<AppState>,
    reference: Ref,
    cancel: CancelToken,
}

impl TaskHandle {
    /// What it is called.
    pub fn reference(&self) -> &Ref {
        &self.reference
    }

    /// How its client ends it early.
    pub fn cancel(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Says how far it is, from 0 to 1. It does not go back.
    pub fn progress(&self, part: f64) {
        let part = part.clamp(0.0, 1.0);
        let told = self.app.db.write_observed(|tx| {
            let was = match tx.view().get(&self.reference, task::Field::progress)? {
                Value::Float(was) => *was,
                _ => 0.0,
            };
            if part < was + PROGRESS_STEP {
                return Ok(());
            }
            tx.set(&self.reference, task::Field::progress, Value::Float(part))
        });
        // A task that is gone has no progress.
        drop(told);
    }

    /// From now on it goes to its end, whatever its client asks.
    pub fn no_cancel(&self) {
        let none = Value::Set(Vec::new());
        let told = self
            .app
            .db
            .write_observed(|tx| tx.set(&self.reference, task::Field::allowed_operations, none));
        drop(told);
    }
}

/// Whether a call's client may ask it to end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellable {
    /// Until it [says](TaskHandle::no_cancel) that it goes to its end.
    Taken,
    /// It goes to its end.
    Refused,
}

/// Begins to carry a call out as a task, and answers with that task.
///
/// Its record is stored first, so that a client finds it after a restart. Where that cannot be, the
/// call is carried out all the same: it may be what makes room, or what stops a machine.
///
/// # Errors
/// `TOO_MANY_PENDING_TASKS`.
pub async fn begin(
    ctx: Ctx,
    cancellable: Cancellable,
    run: impl FnOnce(Ctx) -> BoxFuture<'static, CallResult> + Send + 'static,
) -> CallResult {
    let call_permit = Arc::new(ctx.app.call_limiter.take(&ctx.session.reference)?);
    // What was begun goes on when its caller goes away.
    let entered = tokio::spawn(enter(ctx, call_permit, cancellable, run));
    entered.await.unwrap_or_else(|_| Err(codes::internal("a call broke off; the log says where")))
}

/// Makes and stores the record, and begins.
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
        let running_task = RunningTask { cancel, doomed: false, session, _place: call_permit };
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
        let broken = || Err(codes::internal("a call broke off; the log says where"));
        let answer = carried.await.unwrap_or_else(|_| broken());
        // It is gone only if somebody destroyed its record in another way.
        let _ = end(&app, &ends, &answer);
    });
    Ok(it.value())
}
