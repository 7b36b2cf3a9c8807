//! Calls under way, as their callers see them.
//!
//! # Words
//! - **Task**: the record of a call in its `Async` form, or of something that a client does by
//!   itself and tells others of.
//! - **Owner**: the user who made it. Others need the role of a pool operator to end or forget it.
//!
//! # Model
//! A record tells how far a task is ([`Status`]); what is needed beside that (how to cancel it,
//! its place, whose it is) is kept here and forgotten with it. A task that has ended is kept for
//! [`KEPT`]; if there are more than [`MAX_ENDED`] of them, the oldest for [`KEPT_AT_LEAST`], and if
//! there are more than [`MAX_ENDED_IN_ALL`], no longer. Nothing else takes a task away that nobody
//! destroys, however long it runs. `destroy` of one under way only marks it.
//!
//! # Invariants
//! A task ends once; whatever comes later is passed over. What it tells is stored before it has
//! ended. After a restart no task is under way. That one has ended, or is forgotten, is so whether
//! it can be stored or not.

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

pub use expiry::expire_loop;
pub use record::result_text;
pub use start::{Cancellable, TaskHandle, begin};
pub use state::Status;

use crate::app::AppState;
use crate::db::Ref;
use crate::dispatch::Ctx;
use crate::dispatch::limits::{CallLimiter, CallPermit, MAX_PENDING};

/// How long a task is kept after it has ended.
pub const KEPT: Duration = Duration::from_secs(65 * 60);
/// Most tasks that are kept for as long.
pub const MAX_ENDED: usize = 200;
/// How long others are: whoever began many at once looks at each when it comes to it.
pub const KEPT_AT_LEAST: Duration = Duration::from_secs(5 * 60);
/// Most tasks that are kept at all: as many as can be under way at once.
pub const MAX_ENDED_IN_ALL: usize = MAX_PENDING;

/// What is known of tasks beside their records.
#[derive(Debug, Default)]
pub struct Tasks {
    inner: Mutex<Inner>,
    /// Tasks that clients carry out by themselves have places of their own, so that they take none
    /// from calls.
    theirs: CallLimiter,
    /// Somebody has ended: the moment may have changed at which the next one is forgotten.
    ended: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Inner {
    live: HashMap<Ref, RunningTask>,
    /// Those that have ended, in this order.
    ended: VecDeque<(Instant, Ref)>,
    owners: HashMap<Ref, Arc<str>>,
}

/// A task under way.
#[derive(Debug)]
struct RunningTask {
    /// How it is cancelled; a client's own cannot be reached.
    cancel: Option<CancelToken>,
    /// It is forgotten as soon as it has ended.
    doomed: bool,
    session: Ref,
    _place: Arc<CallPermit>,
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

    /// There is no such task after all.
    fn leave(&self, it: &Ref) {
        let mut inner = self.inner();
        inner.live.remove(it);
        inner.owners.remove(it);
    }
}

/// Takes over the tasks that a restart has left, all of which have ended.
pub fn take_over(app: &AppState) {
    let left: Vec<Ref> =
        app.db.read(|view| view.all(&task::CLASS).map(|task| task.reference().clone()).collect());
    // How far they are is not stored.
    let _ = app.db.write_observed(|tx| {
        left.iter().try_for_each(|it| tx.set(it, task::Field::progress, Value::Float(1.0)))
    });
    let now = app.clock.now();
    app.tasks.inner().ended.extend(left.into_iter().map(|it| (now, it)));
    app.tasks.ended.notify_one();
}

/// Makes a task that its client carries out.
///
/// # Errors
/// `TOO_MANY_PENDING_TASKS`, `OUT_OF_SPACE`.
pub async fn create(ctx: &Ctx, label: &str, description: &str) -> Result<Ref, ApiError> {
    let tasks = &ctx.app.tasks;
    let session = ctx.session.reference.clone();
    let call_permit = tasks.theirs.take(&session).or_else(|_| {
        end_orphaned(&ctx.app);
        tasks.theirs.take(&session)
    })?;
    let running_task =
        RunningTask { cancel: None, doomed: false, session, _place: Arc::new(call_permit) };
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

/// Asks a task to end early. One that has ended is left alone.
///
/// # Errors
/// `RBAC_PERMISSION_DENIED`: it is somebody else's. `OPERATION_NOT_ALLOWED`: it goes to its
/// end, or was asked before.
pub fn cancel(ctx: &Ctx, it: &Ref) -> Result<(), ApiError> {
    own(ctx, it, "task.cancel/any")?;
    ctx.read(|view| view.object(&task::CLASS, it).map(drop))?;
    let live = ctx.app.tasks.inner().live.get(it).map(|running_task| running_task.cancel.clone());
    let cancel = match live {
        // It has ended, or is ending.
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

/// Forgets a task: at once if nothing works on it, else as soon as it has ended.
///
/// # Errors
/// `RBAC_PERMISSION_DENIED`: it is somebody else's.
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
        inner.owners.remove(it);
    }
    ctx.app.db.write_observed(|tx| tx.destroy(&task::CLASS, it))
}

/// A task of a client's own, to which that client may say what has become of it.
///
/// # Errors
/// `RBAC_PERMISSION_DENIED`: it is somebody else's. `OPERATION_NOT_ALLOWED`: the server carries it
/// out, or it has ended.
pub fn client_task(ctx: &Ctx, it: &Ref) -> Result<(), ApiError> {
    own(ctx, it, "task.set_status/any")?;
    let inner = ctx.app.tasks.inner();
    if inner.live.get(it).is_some_and(|running_task| running_task.cancel.is_none()) {
        return Ok(());
    }
    Err(codes::operation_not_allowed("only a task that its client carries out is told how it is"))
}

/// A client says what its own task has become.
///
/// # Errors
/// As [`told`].
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

/// A task has ended like this.
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
    let doomed = {
        let mut inner = app.tasks.inner();
        let Some(running_task) = inner.live.remove(it) else {
            // Somebody else has ended it, or it is gone.
            return Ok(());
        };
        let doomed = running_task.doomed;
        if doomed {
            inner.owners.remove(it);
        } else {
            inner.ended.push_back((app.clock.now(), it.clone()));
        }
        doomed
    };
    // It has ended, whether that can be stored or not.
    app.db.write_observed(|tx| {
        write(tx)?;
        if doomed { tx.destroy(&task::CLASS, it) } else { Ok(()) }
    })?;
    app.tasks.ended.notify_one();
    Ok(())
}

/// Ends tasks that were carried out by clients whose sessions have ended: nobody will say any more
/// what becomes of them.
pub fn end_orphaned(app: &AppState) {
    let theirs: Vec<(Ref, Ref)> = {
        let inner = app.tasks.inner();
        let theirs = inner.live.iter().filter(|(_, running_task)| running_task.cancel.is_none());
        theirs.map(|(it, running_task)| (it.clone(), running_task.session.clone())).collect()
    };
    let gone = |session: &Ref| app.db.read(|view| view.object(&session::CLASS, session).is_err());
    for (it, _) in theirs.iter().filter(|(_, session)| gone(session)) {
        // One that is gone meanwhile needs no end.
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
    let why = format!("the task is another user's; that takes {}", Role::PoolOperator);
    Err(codes::permission_denied(permission, why))
}
