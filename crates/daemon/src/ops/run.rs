//! VM operations, from a call to [`Machines::run`](toolstack::machines::Machines::run).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::id::{Uuid, VmId};
use model::plan::MachineOp;
use model::refusal::Refusal;
use tokio::time::{Instant, timeout, timeout_at};
use toolstack::boxed_future::BoxFuture;
use toolstack::machines::{CancelToken, OpError, OpHooks, Progress, ProgressFn};
use xenapi::ApiError;
use xenapi::table::vm;

use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::dispatch::Ctx;
use crate::ops::current_ops::{CurrentOp, CurrentOps};
use crate::ops::pending_op::{self, PendingOpIntent};
use crate::random;
use crate::records::fields::uuid;

/// Longest wait until the pending op of an operation is on disk. A VM can be stopped even if the
/// disk of the database hangs.
const NOTED_DEADLINE: Duration = Duration::from_secs(5);

/// Precheck that reads records and may write them as the operation begins.
pub(crate) type Precheck = Arc<dyn Fn(&mut Tx<'_>) -> Result<(), Refusal> + Send + Sync>;
/// Precheck that takes too long to run under the database lock.
pub(crate) type SlowPrecheck = Arc<dyn Fn() -> Result<(), Refusal> + Send + Sync>;

/// Request for a VM operation.
pub(crate) struct VmOpRequest {
    /// VM of the operation.
    pub(crate) vm: VmId,
    /// Operation to run.
    pub(crate) op: MachineOp,
    /// Entries in `current_operations` during the operation.
    pub(crate) marks: Vec<CurrentOp>,
    /// Slow precheck, run at the head of the queue before `gate`.
    pub(crate) slow_precheck: SlowPrecheck,
    /// Precheck, run at the head of the queue.
    pub(crate) gate: Precheck,
    /// Pending op to record when the operation begins.
    pub(crate) pending_op_intent: Option<PendingOpIntent>,
}

impl VmOpRequest {
    /// Creates an operation without a precheck, a pending op or entries in `current_operations`.
    pub(crate) fn quiet(vm: VmId, op: MachineOp) -> Self {
        let gate: Precheck = Arc::new(|_| Ok(()));
        Self {
            vm,
            op,
            marks: Vec::new(),
            slow_precheck: no_slow_precheck(),
            gate,
            pending_op_intent: None,
        }
    }
}

/// Builds a handler of several operations that differ by these arguments.
macro_rules! gated {
    ($may_begin:path, $run:path, $op:expr) => {
        $crate::ops::run::gated!(Gated, $may_begin, $run, $op)
    };
    ($kind:ident, $may_begin:path, $run:path, $op:expr) => {
        $crate::dispatch::Handler::$kind(
            |ctx, args| $may_begin(ctx, args, $op),
            |ctx, args| Box::pin($run(ctx, args, $op)),
        )
    };
}

/// Like `gated`, for operations that check their [`CancelToken`].
macro_rules! cancellable {
    ($may_begin:path, $run:path, $op:expr) => {
        $crate::ops::run::gated!(Cancellable, $may_begin, $run, $op)
    };
}

pub(crate) use {cancellable, gated};

/// Returns a slow precheck that always passes.
pub(crate) fn no_slow_precheck() -> SlowPrecheck {
    Arc::new(|| Ok(()))
}

/// Caller of an operation.
pub(crate) struct OpCaller {
    /// Key in `current_operations`: the task's reference.
    pub(crate) key: String,
    /// Token that cancels the operation.
    pub(crate) cancel: CancelToken,
    /// Callback for the progress.
    pub(crate) progress: ProgressFn,
}

impl OpCaller {
    /// Returns the caller of a call.
    pub(crate) fn of(ctx: &Ctx) -> Self {
        match &ctx.task {
            None => Self::nobody(),
            Some(task) => {
                let (key, cancel) = (task.reference().to_string(), task.cancel());
                let task = task.clone();
                let progress: ProgressFn = Arc::new(move |now| match now {
                    Progress::Part(part) => task.progress(part),
                    Progress::Committed => task.no_cancel(),
                });
                Self { key, cancel, progress }
            }
        }
    }

    /// Returns a caller without a task.
    pub(crate) fn nobody() -> Self {
        Self::again(Ref::of(Uuid::from_random(random::bytes())).to_string())
    }

    /// Returns a caller without a task, under the key of an earlier attempt.
    pub(crate) fn again(key: String) -> Self {
        Self { key, cancel: CancelToken::new(), progress: Arc::new(|_| {}) }
    }
}

/// Runs an operation, after the operations already queued on the VM. If another operation is in the
/// way, such as one on a VDI, waits for it up to the queue deadline.
///
/// # Errors
/// The reason why the operation was not done.
pub(crate) async fn run_vm_op(
    app: &AppState,
    caller: &OpCaller,
    vm_op_request: &VmOpRequest,
) -> Result<(), OpError> {
    let end = Instant::now() + app.settings.queue_deadline;
    let mut changed = app.db.changed();
    loop {
        changed.mark_unchanged();
        let current: OngoingOpSlot = Arc::default();
        let ran = app
            .machines
            .run(vm_op_request.vm, vm_op_request.op, job(app, caller, vm_op_request, &current))
            .await;
        // This removes the entries in `current_operations`, before callers are notified.
        current.lock().unwrap_or_else(PoisonError::into_inner).take();
        if vm_op_request
            .pending_op_intent
            .is_some_and(|pending_op_intent| !(pending_op_intent.stays && ran.is_ok()))
        {
            // A destroyed VM has no pending op.
            let _ = app.db.write_observed(|tx| {
                let machine = tx.view().by_uuid(&vm::CLASS, &vm_op_request.vm.to_string())?.clone();
                pending_op::over(tx, &machine, &caller.key)
            });
        }
        match ran {
            Err(OpError::Refused(refusal)) if refusal.passes() => {
                if timeout_at(end, changed.changed()).await.is_err() {
                    return Err(OpError::Refused(refusal));
                }
            }
            ended => return ended,
        }
    }
}

/// Guard of the operation's entries, filled by the precheck.
type OngoingOpSlot = Arc<Mutex<Option<CurrentOps>>>;

fn job(
    app: &AppState,
    caller: &OpCaller,
    vm_op_request: &VmOpRequest,
    current: &OngoingOpSlot,
) -> OpHooks {
    let (db, key, begun) = (app.db.clone(), caller.key.clone(), current.clone());
    let (slow_precheck, check, marks) = (
        vm_op_request.slow_precheck.clone(),
        vm_op_request.gate.clone(),
        vm_op_request.marks.clone(),
    );
    let (vm, pending_op_intent) = (vm_op_request.vm, vm_op_request.pending_op_intent);
    let gate = move || {
        slow_precheck()?;
        let now = CurrentOps::begin(&db, &key, &marks, |tx| {
            check(tx)?;
            pending_op_intent
                .map_or(Ok(()), |pending_op_intent| owe(tx, vm, pending_op_intent, &key))
        })?;
        *begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
    };
    let (waiter, begun) = (app.persistence.waiter(), current.clone());
    let noted = move || -> BoxFuture<'static, ()> {
        let now = begun.lock().unwrap_or_else(PoisonError::into_inner);
        let (waiter, precheck_wrote) =
            (waiter.clone(), now.as_ref().is_some_and(CurrentOps::precheck_wrote));
        Box::pin(async move {
            if precheck_wrote && timeout(NOTED_DEADLINE, waiter.tried()).await.is_err() {
                tracing::warn!(%vm, "operation start not stored in time; it continues");
            }
        })
    };
    let (progress, cancel) = (caller.progress.clone(), caller.cancel.clone());
    OpHooks { gate: Box::new(gate), noted: Box::new(noted), progress, cancel }
}

fn owe(
    tx: &mut Tx<'_>,
    vm: VmId,
    pending_op_intent: PendingOpIntent,
    by: &str,
) -> Result<(), Refusal> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string()).map_err(gone)?.clone();
    pending_op::begin(tx, &machine, pending_op_intent, by).map_err(gone)
}

/// Returns the ID of a VM record.
///
/// # Errors
/// `HANDLE_INVALID` if the VM does not exist.
pub(crate) fn id_of(view: &View<'_>, machine: &Ref) -> Result<VmId, ApiError> {
    uuid(view, machine, vm::Field::uuid).map(VmId)
}

/// Drops a refusal that another operation causes, because the caller queues behind that operation.
///
/// # Errors
/// A refusal that does not pass by itself.
pub(crate) fn at_once(checked: Result<(), Refusal>) -> Result<(), Refusal> {
    checked.or_else(|refusal| if refusal.passes() { Ok(()) } else { Err(refusal) })
}

/// Converts a database error to a refusal. The error names the object that does not exist.
pub(crate) fn gone(error: ApiError) -> Refusal {
    Refusal::NotAllowed(error.to_string())
}
