//! Operations of machines, from a call to [`Machines::run`](toolstack::machines::Machines::run).

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
use crate::random;
use crate::records::current::{CurrentOp, CurrentOps};
use crate::records::fields::uuid;
use crate::records::owed::{self, PendingOpIntent};

/// Longest wait until what is told as an operation begins is on disk: a machine is stopped though
/// the disk of the records hangs.
const NOTED_DEADLINE: Duration = Duration::from_secs(5);

/// Whether an operation may begin, by the records,
/// and what is recorded as it does.
pub(crate) type Precheck = Arc<dyn Fn(&mut Tx<'_>) -> Result<(), Refusal> + Send + Sync>;
/// Whether it may begin, by what takes longer to look at than a lock may be held.
pub(crate) type SlowPrecheck = Arc<dyn Fn() -> Result<(), Refusal> + Send + Sync>;

/// An operation of a machine.
pub(crate) struct VmOpRequest {
    /// The machine.
    pub(crate) vm: VmId,
    /// What is to be done.
    pub(crate) op: MachineOp,
    /// What `current_operations` tell meanwhile.
    pub(crate) marks: Vec<CurrentOp>,
    /// Asked when its turn has come, before `gate`.
    pub(crate) look: SlowPrecheck,
    /// Asked when its turn has come.
    pub(crate) gate: Precheck,
    /// What the machine is owed from then on.
    pub(crate) pending_op_intent: Option<PendingOpIntent>,
}

impl VmOpRequest {
    /// An operation that nobody is told of, which may always begin and is owed to nobody.
    pub(crate) fn quiet(vm: VmId, op: MachineOp) -> Self {
        let gate: Precheck = Arc::new(|_| Ok(()));
        Self { vm, op, marks: Vec::new(), look: no_look(), gate, pending_op_intent: None }
    }
}

/// A handler of several operations that differ by what is given here.
macro_rules! gated {
    ($may_begin:path, $run:path, $op:expr) => {
        $crate::calls::carry::gated!(Gated, $may_begin, $run, $op)
    };
    ($kind:ident, $may_begin:path, $run:path, $op:expr) => {
        $crate::dispatch::Handler::$kind(
            |ctx, args| $may_begin(ctx, args, $op),
            |ctx, args| Box::pin($run(ctx, args, $op)),
        )
    };
}

/// As `gated`, of what looks at its [`CancelToken`].
macro_rules! cancellable {
    ($may_begin:path, $run:path, $op:expr) => {
        $crate::calls::carry::gated!(Cancellable, $may_begin, $run, $op)
    };
}

pub(super) use {cancellable, gated};

/// Looks at nothing.
pub(crate) fn no_look() -> SlowPrecheck {
    Arc::new(|| Ok(()))
}

/// Who asks for an operation, and is told of it.
pub(crate) struct OpCaller {
    /// What `current_operations` call it: the task's reference.
    pub(crate) key: String,
    /// Ends it early.
    pub(crate) cancel: CancelToken,
    /// How far it is.
    pub(crate) progress: ProgressFn,
}

impl OpCaller {
    /// Whoever called.
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

    /// Nobody waits for it as a task.
    pub(crate) fn nobody() -> Self {
        Self::again(Ref::of(Uuid::from_random(random::bytes())).to_string())
    }

    /// Nobody waits any more for what was begun under this key.
    pub(crate) fn again(key: String) -> Self {
        Self { key, cancel: CancelToken::new(), progress: Arc::new(|_| {}) }
    }
}

/// Does it, after what the machine does already. What stands in its way beside that, such as an
/// operation of a disk, is waited for as long as a turn.
///
/// # Errors
/// Why it was not done.
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
        // From here on it is not under way, whoever waits for that.
        current.lock().unwrap_or_else(PoisonError::into_inner).take();
        if vm_op_request
            .pending_op_intent
            .is_some_and(|pending_op_intent| !(pending_op_intent.stays && ran.is_ok()))
        {
            // Of a machine that is gone nothing is owed.
            let _ = app.db.write_observed(|tx| {
                let machine = tx.view().by_uuid(&vm::CLASS, &vm_op_request.vm.to_string())?.clone();
                owed::over(tx, &machine, &caller.key)
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

/// The operation as it is under way, from its gate on.
type OngoingOpSlot = Arc<Mutex<Option<CurrentOps>>>;

fn job(
    app: &AppState,
    caller: &OpCaller,
    vm_op_request: &VmOpRequest,
    current: &OngoingOpSlot,
) -> OpHooks {
    let (db, key, begun) = (app.db.clone(), caller.key.clone(), current.clone());
    let (look, check, marks) =
        (vm_op_request.look.clone(), vm_op_request.gate.clone(), vm_op_request.marks.clone());
    let (vm, pending_op_intent) = (vm_op_request.vm, vm_op_request.pending_op_intent);
    let gate = move || {
        look()?;
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
        let (waiter, told) = (waiter.clone(), now.as_ref().is_some_and(CurrentOps::has_told));
        Box::pin(async move {
            if told && timeout(NOTED_DEADLINE, waiter.tried()).await.is_err() {
                tracing::warn!(%vm, "what begins is not stored in time, and goes on");
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
    owed::begin(tx, &machine, pending_op_intent, by).map_err(gone)
}

/// The machine that a record is of.
///
/// # Errors
/// `HANDLE_INVALID`.
pub(crate) fn id_of(view: &View<'_>, machine: &Ref) -> Result<VmId, ApiError> {
    uuid(view, machine, vm::Field::uuid).map(VmId)
}

/// What is refused at once. What another operation stands in the way of waits its turn.
///
/// # Errors
/// A refusal that does not pass by itself.
pub(crate) fn at_once(checked: Result<(), Refusal>) -> Result<(), Refusal> {
    checked.or_else(|refusal| if refusal.passes() { Ok(()) } else { Err(refusal) })
}

/// A record that is gone, as a refusal: whoever asked is told by the reference.
pub(crate) fn gone(error: ApiError) -> Refusal {
    Refusal::NotAllowed(error.to_string())
}
