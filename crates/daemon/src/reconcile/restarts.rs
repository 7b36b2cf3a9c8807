//! Restarts of VMs whose guests crashed shortly after their start.
//!
//! A restart waits, longer after each crash. While it waits, it is a task of the server and an entry
//! in the VM's `current_operations`. A shutdown, a start or the destruction of the VM calls it off,
//! and so does `task.cancel`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::id::VmId;
use model::refusal::Refusal;
use model::vm::exits::{CRASH_WINDOW, ExitAction, ExitPolicy, OnCrash, on_crash};
use model::vm::{PowerState, VmOp};
use tokio::time::timeout;
use toolstack::machines::{CancelToken, OpError};
use xenapi::table::{host, vm};
use xenapi::{ApiError, Value, codes};

use super::pending_ops::start;
use crate::app::AppState;
use crate::db::{Ref, View};
use crate::ops::current_ops::{CurrentOp, CurrentOps};
use crate::ops::pending_op;
use crate::ops::run::gone;
use crate::records::fields::flag;
use crate::records::machine_config;
use crate::tasks::{self, TaskHandle};

/// Restarts that wait, and the crashes that led to them.
#[derive(Debug, Default)]
pub struct Restarts(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: HashMap<VmId, WaitingRestart>,
    /// Consecutive crashes, each within [`CRASH_WINDOW`] of a start.
    crashes: HashMap<VmId, u8>,
}

/// A restart that waits. Dropping it removes the VM's entry in `current_operations`.
struct WaitingRestart {
    machine: Ref,
    /// Key of the pending op.
    by: String,
    task: TaskHandle,
    _current: CurrentOps,
}

impl std::fmt::Debug for WaitingRestart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingRestart").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Restarts {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a crash of a guest that ran for this time. Returns the consecutive crashes shortly
    /// after a start, 0 if this one came later.
    pub(crate) fn crashed(&self, vm: VmId, ran: Duration) -> u8 {
        let mut inner = self.inner();
        if ran >= CRASH_WINDOW {
            inner.crashes.remove(&vm);
            return 0;
        }
        let count = inner.crashes.entry(vm).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Returns whether a restart of the VM waits.
    pub(crate) fn is_waiting(&self, vm: VmId) -> bool {
        self.inner().waiting.contains_key(&vm)
    }

    /// Calls off the restart of a VM, and forgets its crashes. Returns whether a restart waited.
    pub(crate) fn call_off(&self, app: &AppState, vm: VmId) -> bool {
        let waiting = {
            let mut inner = self.inner();
            inner.crashes.remove(&vm);
            inner.waiting.remove(&vm)
        };
        let Some(WaitingRestart { machine, by, task, .. }) = waiting else { return false };
        // This wakes the restart.
        task.cancel().cancel();
        // A destroyed VM has no pending op.
        let _ = app.db.write_observed(|tx| pending_op::over(tx, &machine, &by));
        let cancelled = Err(codes::task_cancelled(task.reference().as_str()));
        // The task may be destroyed meanwhile.
        let _ = tasks::end(app, task.reference(), &cancelled);
        true
    }

    /// Removes a waiting restart if it still has this task.
    fn take(&self, vm: VmId, task: &Ref) -> Option<WaitingRestart> {
        let mut inner = self.inner();
        let is_it = inner.waiting.get(&vm).is_some_and(|one| one.task.reference() == task);
        is_it.then(|| inner.waiting.remove(&vm)).flatten()
    }
}

/// Starts a VM again after a delay, unless it is called off. `by` is the key of the pending start,
/// `name` the VM's name.
///
/// # Errors
/// A sentence: the VM was not started.
pub(super) async fn restart(
    app: &Arc<AppState>,
    (vm, machine, name): (VmId, &Ref, &str),
    delay: Duration,
    by: &str,
) -> Result<(), String> {
    let what = format!("Start `{name}` again after a crash");
    let task = tasks::of_server(app, "VM.start", &what, CancelToken::new())
        .map_err(|error| error.to_string())?;
    let it = task.reference().clone();
    if !begin(app, vm, machine, by, &task) {
        // Another operation has come first.
        end(app, &it, Err(codes::task_cancelled(it.as_str())));
        return Ok(());
    }
    let cancelled = timeout(delay, task.cancel().cancelled()).await.is_ok();
    if cancelled {
        app.restarts.call_off(app, vm);
    }
    let Some(waiting) = app.restarts.take(vm, &it) else { return Ok(()) };
    drop(waiting);
    let started = match app.db.read(|view| wanted(view, machine)) {
        Ok(()) => match start(app, machine, by).await {
            Ok(()) | Err(OpError::Refused(Refusal::BadPowerState { .. }) | OpError::Cancelled) => {
                Ok(())
            }
            Err(error) => Err(error_causes::error_chain(&error)),
        },
        Err(why) => {
            // A destroyed VM has no pending op.
            let _ = app.db.write_observed(|tx| pending_op::over(tx, machine, by));
            Err(why)
        }
    };
    let answer = started.clone().map(|()| Value::text(""));
    end(app, &it, answer.map_err(codes::operation_not_allowed));
    started
}

fn end(app: &AppState, task: &Ref, answer: Result<Value, ApiError>) {
    // The task may be destroyed meanwhile.
    let _ = tasks::end(app, task, &answer);
}

/// Enters a restart that waits. Returns false if its start is not pending any more.
fn begin(app: &AppState, vm: VmId, machine: &Ref, by: &str, task: &TaskHandle) -> bool {
    let field = vm::Field::current_operations.into();
    let mark = CurrentOp { of: machine.clone(), field, op: VmOp::Start.name() };
    let current = CurrentOps::begin(&app.db, task.reference().as_str(), &[mark], |tx| {
        let view = tx.view();
        let is_owed = pending_op::of(&view, machine).is_some_and(|pending_op| pending_op.by == by);
        let is_halted = machine_config::power(&view, machine).map_err(gone)? == PowerState::Halted;
        if is_owed && is_halted {
            return Ok(());
        }
        Err(Refusal::NotAllowed("the restart was called off".into()))
    });
    let Ok(current) = current else { return false };
    let (machine, by, task) = (machine.clone(), by.to_owned(), task.clone());
    let waiting = WaitingRestart { machine, by, task, _current: current };
    app.restarts.inner().waiting.insert(vm, waiting);
    true
}

/// Checks that a restart is still wanted: the action after a crash is a restart, and the host is
/// enabled.
fn wanted(view: &View<'_>, machine: &Ref) -> Result<(), String> {
    let ExitPolicy { crash, .. } =
        machine_config::after(view, machine).map_err(|error| error.to_string())?;
    if on_crash(crash) != ExitAction::Restart {
        let (now, usual) = (crash.name(), OnCrash::Restart.name());
        return Err(format!("the action after a crash is {now} by now, not {usual}"));
    }
    let is_disabled =
        |host: &crate::db::Object| flag(view, host.reference(), host::Field::enabled) == Ok(false);
    if view.all(&host::CLASS).any(is_disabled) {
        return Err("the host is disabled".to_owned());
    }
    Ok(())
}
