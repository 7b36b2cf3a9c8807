//! Tasks of work that no call began: transfers of disks over HTTP.

use std::sync::Arc;

use toolstack::machines::CancelToken;
use xenapi::table::{Role, task};
use xenapi::{ApiError, Value, codes};

use super::{RunningTask, TaskHandle, own, record};
use crate::db::{Ref, Tx};
use crate::dispatch::Ctx;

/// Makes the server carry out a task: the client's own, if it names one, or a new one. Its context
/// reports to it from then on. `tasks::end` ends it.
///
/// # Errors
/// `TOO_MANY_PENDING_TASKS`. For a task of the client: `HANDLE_INVALID`, `RBAC_PERMISSION_DENIED` if
/// another user owns it, and `OPERATION_NOT_ALLOWED` if it has ended, or the server carries it out
/// already.
pub fn carry(ctx: &mut Ctx, label: &str, named: Option<&Ref>) -> Result<(), ApiError> {
    let (app, cancel) = (ctx.app.clone(), CancelToken::new());
    let cancellable = |tx: &mut Tx<'_>, it: &Ref| {
        let cancel = Value::Set(vec![Value::text("cancel")]);
        tx.set(it, task::Field::allowed_operations, cancel)
    };
    let reference = match named {
        Some(it) => {
            ctx.read(|view| view.object(&task::CLASS, it).map(drop))?;
            own(ctx, it, "task.set_status/any")?;
            take_from_client(ctx, it, &cancel)?;
            app.db.write_observed(|tx| cancellable(tx, it))?;
            it.clone()
        }
        None => {
            let session = ctx.session.reference.clone();
            let bounded = ctx.session.role < Role::PoolOperator;
            let call_permit = Arc::new(app.call_limiter.take(&session)?);
            let made = app.db.write_observed(|tx| {
                let it = record::make(tx, &app, label, "")?;
                cancellable(tx, &it)?;
                let cancel = Some(cancel.clone());
                let running_task = RunningTask {
                    cancel,
                    doomed: false,
                    session,
                    bounded,
                    _place: Some(call_permit),
                };
                app.tasks.enter(&it, &ctx.session.user, running_task);
                Ok(it)
            });
            made?
        }
    };
    ctx.task = Some(TaskHandle { app, reference, cancel });
    Ok(())
}

/// Gives a task that a client carries out a cancel token, so that the server carries it out.
fn take_from_client(ctx: &Ctx, it: &Ref, cancel: &CancelToken) -> Result<(), ApiError> {
    let mut inner = ctx.app.tasks.inner();
    match inner.live.get_mut(it) {
        Some(running_task) if running_task.cancel.is_none() => {
            running_task.cancel = Some(cancel.clone());
            Ok(())
        }
        _ => Err(codes::operation_not_allowed(
            "the task has ended, or shows another operation already: create one for this",
        )),
    }
}
