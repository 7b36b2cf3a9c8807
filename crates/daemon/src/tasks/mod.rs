//! Tasks: calls under way as clients see them.
//!
//! # Terms
//! - **Task**: record of an `Async` call, or of work that a client does by itself and reports to
//!   others.
//! - **Owner**: user who created the task. Other users need the role pool-operator to cancel or
//!   destroy it.
//!
//! # Model
//! The record shows the [`Status`] of a task. This module stores the rest: cancel token, permit and
//! owner. An ended task stays for [`KEPT`]. If more than [`MAX_ENDED`] have ended, the oldest stay
//! for [`KEPT_AT_LEAST`]. If more than [`MAX_ENDED_IN_ALL`] have ended, the oldest are destroyed at
//! once. A running task is never destroyed, however long it runs. `destroy` of a running task only
//! marks it.
//!
//! # Invariants
//! A task ends once; later results are ignored. Its changes are stored before it ends. After a
//! restart no task is under way. The end and the expiry of a task are observed changes: they hold
//! even if they cannot be stored.

mod background;
mod carry;
mod expiry;
mod record;
mod start;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use toolstack::machines::CancelToken;
use xenapi::table::{Role, session, task};
use xenapi::{ApiError, Value, codes};

pub(crate) use background::BackgroundTask;
pub use carry::carry;
pub use expiry::expire_loop;
pub use record::result_text;
pub use start::{Cancellable, TaskHandle, begin};
pub(crate) use start::{ProgressMeter, of_server};
pub use state::Status;

use crate::app::AppState;
use crate::db::Ref;
use crate::dispatch::Ctx;
use crate::dispatch::limits::{CallLimiter, CallPermit, MAX_PENDING};

/// Most bytes of a text in a task that a client of a user below pool-operator carries out. Such tasks
/// need no role.
pub const CLIENT_TEXT_BYTES_MAX: usize = 4 << 10;
/// Most ended tasks of one user below pool-operator that clients carried out.
pub const MAX_ENDED_OF_USER: usize = 200;
/// Time that an ended task stays.
pub const KEPT: Duration = Duration::from_secs(65 * 60);
/// Most ended tasks that stay for this time.
pub const MAX_ENDED: usize = 200;
/// Time that the others stay. A client that starts many tasks at once needs time to read each.
pub const KEPT_AT_LEAST: Duration = Duration::from_secs(5 * 60);
/// Most ended tasks: as many as can run at once.
pub const MAX_ENDED_IN_ALL: usize = MAX_PENDING;

/// Data about tasks in addition to their records.
#[derive(Debug, Default)]
pub struct Tasks {
    inner: Mutex<Inner>,
    /// Limits of tasks that clients carry out, separate from those of calls.
    theirs: CallLimiter,
    /// Notified when a task ends, because the next expiry may change.
    ended: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Inner {
    live: HashMap<Ref, RunningTask>,
    /// Ended tasks in order of their ends.
    ended: VecDeque<(Instant, Ref)>,
    owners: HashMap<Ref, Arc<str>>,
    /// Ended tasks that clients of users below pool-operator carried out, by user, in order.
    ended_of_users: HashMap<Arc<str>, VecDeque<Ref>>,
}

/// Task under way.
#[derive(Debug)]
struct RunningTask {
    /// Cancel token. `None` for a task that a client carries out.
    cancel: Option<CancelToken>,
    /// Whether the task is destroyed when it ends.
    doomed: bool,
    /// Whether the ended tasks of its user are bounded.
    bounded: bool,
    session: Ref,
    /// Permit of the call. `None` for a task of the server.
    _place: Option<Arc<CallPermit>>,
}

impl Inner {
    /// Enters an ended task of a user whose ended tasks are bounded. Returns the user's oldest one if
    /// they are too many.
    fn surplus(&mut self, it: &Ref) -> Option<Ref> {
        let owner = self.owners.get(it)?.clone();
        let of_user = self.ended_of_users.entry(owner).or_default();
        of_user.push_back(it.clone());
        let surplus = (of_user.len() > MAX_ENDED_OF_USER).then(|| of_user.pop_front()).flatten()?;
        self.owners.remove(&surplus);
        self.ended.retain(|(_, ended)| *ended != surplus);
        Some(surplus)
    }

    /// Forgets an ended task that is destroyed.
    fn forget(&mut self, it: &Ref) {
        let Some(owner) = self.owners.remove(it) else { return };
        let Some(of_user) = self.ended_of_users.get_mut(&owner) else { return };
        of_user.retain(|ended| ended != it);
        if of_user.is_empty() {
            self.ended_of_users.remove(&owner);
        }
    }
}

impl Tasks {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, it: &Ref, user: &str, running_task: RunningTask) {
        let mut inner = self.inner();
        inner.owners.insert(it.clone(), user.into());
        inner.live.insert(it.clone(), running_task);
    }

    /// Removes a task whose record was not created.
    fn leave(&self, it: &Ref) {
        let mut inner = self.inner();
        inner.live.remove(it);
        inner.owners.remove(it);
    }
}

/// Adopts the tasks of a former daemon, which have all ended.
pub fn take_over(app: &AppState) {
    let left: Vec<Ref> =
        app.db.read(|view| view.all(&task::CLASS).map(|task| task.reference().clone()).collect());
    // Progress is not stored.
    let _ = app.db.write_observed(|tx| {
        left.iter().try_for_each(|it| tx.set(it, task::Field::progress, Value::Float(1.0)))
    });
    let now = app.clock.now();
    app.tasks.inner().ended.extend(left.into_iter().map(|it| (now, it)));
    app.tasks.ended.notify_one();
}

/// Creates a task that a client carries out.
///
/// # Errors
/// `TOO_MANY_PENDING_TASKS`, `OUT_OF_SPACE`, or `VALUE_NOT_SUPPORTED` for a long text.
pub async fn create(ctx: &Ctx, label: &str, description: &str) -> Result<Ref, ApiError> {
    check_text(ctx, "label", label.len())?;
    check_text(ctx, "description", description.len())?;
    let tasks = &ctx.app.tasks;
    let (session, key) = (ctx.session.reference.clone(), ctx.session.limit_key());
    let call_permit = tasks.theirs.take(&key).or_else(|_| {
        end_orphaned(&ctx.app);
        tasks.theirs.take(&key)
    })?;
    let bounded = ctx.session.role < Role::PoolOperator;
    let running_task = RunningTask {
        cancel: None,
        doomed: false,
        bounded,
        session,
        _place: Some(Arc::new(call_permit)),
    };
    let it = ctx.change(|tx| {
        let it = record::make(tx, &ctx.app, label, description)?;
        tasks.enter(&it, &ctx.session.user, running_task);
        Ok(it)
    })?;
    if let Err(error) = ctx.stored().await {
        tasks.leave(&it);
        return Err(error);
    }
    Ok(it)
}

/// Checks the length of a text in a task that a client carries out, in bytes.
///
/// # Errors
/// `VALUE_NOT_SUPPORTED` with this field.
pub fn check_text(ctx: &Ctx, field: &str, bytes: usize) -> Result<(), ApiError> {
    if bytes <= CLIENT_TEXT_BYTES_MAX || ctx.session.role >= Role::PoolOperator {
        return Ok(());
    }
    let why = format!("{bytes} bytes; at most {CLIENT_TEXT_BYTES_MAX} are kept");
    Err(codes::value_not_supported(field, "", why))
}

/// Requests the cancellation of a task. An ended task stays as it is.
///
/// # Errors
/// `RBAC_PERMISSION_DENIED` if another user owns it. `OPERATION_NOT_ALLOWED` if it cannot be
/// cancelled any more, or was cancelled before.
pub fn cancel(ctx: &Ctx, it: &Ref) -> Result<(), ApiError> {
    own(ctx, it, "task.cancel/any")?;
    ctx.read(|view| view.object(&task::CLASS, it).map(drop))?;
    let live = ctx.app.tasks.inner().live.get(it).map(|running_task| running_task.cancel.clone());
    let cancel = match live {
        // The task has ended or is ending.
        None => return Ok(()),
        Some(None) => return end(&ctx.app, it, &Err(codes::task_cancelled(it.as_str()))),
        Some(Some(cancel)) => cancel,
    };
    ctx.change(|tx| {
        if record::status(&tx.view(), it)?.ended() {
            return Ok(());
        }
        if *tx.view().get(it, task::Field::allowed_operations)? == Value::Set(Vec::new()) {
            return Err(codes::operation_not_allowed(
                "the task cannot be cancelled, or not any more",
            ));
        }
        tx.set(it, task::Field::allowed_operations, Value::Set(Vec::new()))?;
        tx.set_key(it, task::Field::current_operations, it.as_str(), Some(Value::text("cancel")))
    })?;
    cancel.cancel();
    Ok(())
}

/// Destroys a task: at once if a client carries it out or it has ended, else when it ends.
///
/// # Errors
/// `RBAC_PERMISSION_DENIED` if another user owns it.
pub fn destroy(ctx: &Ctx, it: &Ref) -> Result<(), ApiError> {
    own(ctx, it, "task.destroy/any")?;
    {
        let mut inner = ctx.app.tasks.inner();
        if let Some(running_task) =
            inner.live.get_mut(it).filter(|running_task| running_task.cancel.is_some())
        {
            running_task.doomed = true;
            return Ok(());
        }
        inner.live.remove(it);
        inner.ended.retain(|(_, ended)| ended != it);
        inner.forget(it);
    }
    ctx.app.db.write_observed(|tx| tx.destroy(&task::CLASS, it))
}

/// Checks that a client may set the status of this task, because the client carries it out.
///
/// # Errors
/// `RBAC_PERMISSION_DENIED` if another user owns it. `OPERATION_NOT_ALLOWED` if the server carries
/// it out or it has ended.
pub fn client_task(ctx: &Ctx, it: &Ref) -> Result<(), ApiError> {
    own(ctx, it, "task.set_status/any")?;
    let inner = ctx.app.tasks.inner();
    if inner.live.get(it).is_some_and(|running_task| running_task.cancel.is_none()) {
        return Ok(());
    }
    Err(codes::operation_not_allowed("only a task that its client runs can be updated"))
}

/// Sets the status of a task that a client carries out.
///
/// # Errors
/// Those of [`client_task`].
pub fn set_status(ctx: &Ctx, it: &Ref, status: Status) -> Result<(), ApiError> {
    client_task(ctx, it)?;
    if status.ended() {
        return finish(&ctx.app, it, |tx| record::set_ended(tx, &ctx.app, it, status));
    }
    ctx.change(|tx| {
        if record::status(&tx.view(), it)?.may_become(status) {
            tx.set(it, task::Field::status, Value::text(status.name()))?;
        }
        Ok(())
    })
}

/// Ends a task with this result.
pub(crate) fn end(
    app: &AppState,
    it: &Ref,
    answer: &Result<Value, ApiError>,
) -> Result<(), ApiError> {
    finish(app, it, |tx| record::end(tx, app, it, answer))
}

fn finish(
    app: &AppState,
    it: &Ref,
    write: impl FnOnce(&mut crate::db::Tx<'_>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let (doomed, surplus) = {
        let mut inner = app.tasks.inner();
        let Some(running_task) = inner.live.remove(it) else {
            // The task has ended already or does not exist.
            return Ok(());
        };
        let (doomed, bounded) = (running_task.doomed, running_task.bounded);
        if doomed {
            inner.owners.remove(it);
        } else {
            inner.ended.push_back((app.clock.now(), it.clone()));
        }
        (doomed, if doomed || !bounded { None } else { inner.surplus(it) })
    };
    // The task has ended, so this change must not be rolled back.
    app.db.write_observed(|tx| {
        write(tx)?;
        if let Some(surplus) = &surplus {
            // It may be destroyed already.
            let _gone = tx.destroy(&task::CLASS, surplus);
        }
        if doomed { tx.destroy(&task::CLASS, it) } else { Ok(()) }
    })?;
    app.tasks.ended.notify_one();
    Ok(())
}

/// Ends tasks of clients whose sessions have ended, because no client will report their end.
pub fn end_orphaned(app: &AppState) {
    let theirs: Vec<(Ref, Ref)> = {
        let inner = app.tasks.inner();
        let theirs = inner.live.iter().filter(|(_, running_task)| running_task.cancel.is_none());
        theirs.map(|(it, running_task)| (it.clone(), running_task.session.clone())).collect()
    };
    let gone = |session: &Ref| app.db.read(|view| view.object(&session::CLASS, session).is_err());
    for (it, _) in theirs.iter().filter(|(_, session)| gone(session)) {
        // A task may be destroyed meanwhile.
        let _ = end(app, it, &Err(codes::task_cancelled(it.as_str())));
    }
}

fn own(ctx: &Ctx, it: &Ref, permission: &str) -> Result<(), ApiError> {
    let owner = ctx.app.tasks.inner().owners.get(it).cloned();
    if owner.is_some_and(|owner| *owner == *ctx.session.user)
        || ctx.session.role >= Role::PoolOperator
    {
        return Ok(());
    }
    let why = format!("the task belongs to another user; this needs role {}", Role::PoolOperator);
    Err(codes::permission_denied(permission, why))
}
