//! The owner of a machine: does what is asked of it, one operation after the other.
//!
//! An owner is a task that is there while there is something to do. After an operation that did
//! not do what it should, it settles: whatever is asked next begins from a state that is recorded
//! as it is. Whoever asked is answered when that has ended, or after [`ANSWER_GRACE`].

use std::sync::Arc;
use std::time::Duration;

use model::id::Domid;
use model::plan::{self, DomainState, MachineOp, RunState, StepAction};
use model::refusal::Refusal;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::memory::MemoryShortfall;
use super::observed::Machine;
use super::op_queue::{NextAction, QueuedOp};
use super::step_runner::MachineStepRunner;
use super::{MachineRecord, Machines, OpError, OpHooks};
use crate::exec::{CancelToken, PlanOutcome, ProgressFn};

/// How long the answer to a failed operation waits for the settle after it: storage in good order
/// is settled by then, and nobody waits for storage that hangs.
const ANSWER_GRACE: Duration = Duration::from_millis(500);
/// How long the hypervisor may take to tell what is there of one machine. Past it the domain
/// counts as one that does not answer.
const FIND_DEADLINE: Duration = Duration::from_secs(2);

type Outcome = Result<(), OpError>;
type ReplySender = oneshot::Sender<Outcome>;

/// Works for a machine until there is nothing to do.
pub(super) async fn run_op_loop(machines: Arc<Machines>, machine: Arc<Machine>) {
    // The answer to an operation that failed.
    let mut owed: Option<(ReplySender, Outcome)> = None;
    loop {
        // Not in the `match`, which would hold the queue.
        let next = machine.queue().take();
        match next {
            NextAction::Turn(queued_op) => {
                answer(owed.take());
                owed = take_turn(&machines, &machine, queued_op).await;
            }
            NextAction::Settle(cancel) => settle(&machines, &machine, cancel, &mut owed).await,
            NextAction::Nothing => {
                answer(owed.take());
                if machines.retire(&machine) {
                    return;
                }
            }
        }
    }
}

/// Whoever asked may have gone.
fn answer(owed: Option<(ReplySender, Outcome)>) {
    if let Some((told, outcome)) = owed {
        let _ = told.send(outcome);
    }
}

/// Does one operation. The answer is given back where something is to be settled first.
async fn take_turn(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    queued_op: QueuedOp,
) -> Option<(ReplySender, Outcome)> {
    let QueuedOp { op, op_hooks, deadline, told, .. } = queued_op;
    let outcome = match may_begin(&op_hooks, deadline) {
        Ok(()) => {
            (op_hooks.noted)().await;
            execute_op(machines, machine, &op, (&op_hooks.progress, &op_hooks.cancel)).await
        }
        Err(error) => {
            answer(Some((told, Err(error))));
            return None;
        }
    };
    if let Err(OpError::Cancelled | OpError::Failed { .. }) = outcome {
        machine.queue().request_reconcile();
        return Some((told, outcome));
    }
    answer(Some((told, outcome)));
    None
}

fn may_begin(op_hooks: &OpHooks, deadline: Instant) -> Outcome {
    if Instant::now() > deadline {
        return Err(OpError::Busy);
    }
    if op_hooks.cancel.is_cancelled() {
        return Err(OpError::Cancelled);
    }
    Ok((op_hooks.gate)()?)
}

/// Makes reality and record agree. One that fails is not tried again by itself: hung storage would
/// keep it going for ever. The end of a call that was left does it again; so does the next
/// operation where that depends on it.
async fn settle(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    cancel: CancelToken,
    owed: &mut Option<(ReplySender, Outcome)>,
) {
    let unwatched: ProgressFn = Arc::new(|_| ());
    let settled = execute_op(machines, machine, &MachineOp::Settle, (&unwatched, &cancel));
    tokio::pin!(settled);
    let outcome = match timeout(ANSWER_GRACE, &mut settled).await {
        Ok(outcome) => outcome,
        Err(_) => {
            answer(owed.take());
            settled.await
        }
    };
    if let Err(error) = outcome {
        tracing::warn!(vm = %machine.vm, %error, "could not be settled");
    }
}

/// Plans an operation from what is there and carries it out.
async fn execute_op(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    op: &MachineOp,
    by: (&ProgressFn, &CancelToken),
) -> Outcome {
    look(machines, machine).await;
    let machine_record = machines.records.machine(machine.vm)?;
    if let MachineOp::AfterExit(_) = op
        && has_living_domain(machine)
    {
        // Another operation has dealt with it: this domain is another one.
        return Ok(());
    }
    // A settle has failed before. What is given to a guest is given as it is recorded; and one
    // whose disk is not served does nothing that it is asked.
    let strays = makes_domain(op) || matches!(op, MachineOp::VbdPlug(_) | MachineOp::Insert(_));
    let unserved = !makes_domain(op)
        && !matches!(op, MachineOp::HardShutdown | MachineOp::Reset | MachineOp::Settle);
    let first = {
        let observed = machine.there();
        strays && observed.has_stale_volumes(&machine_record) || unserved && observed.has_unserved()
    };
    if first {
        let unwatched: ProgressFn = Arc::new(|_| ());
        walk(machines, machine, (&MachineOp::Settle, &machine_record), (&unwatched, by.1)).await?;
    }
    walk(machines, machine, (op, &machine_record), by).await
}

async fn walk(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    (op, machine_record): (&MachineOp, &MachineRecord),
    (progress, cancel): (&ProgressFn, &CancelToken),
) -> Outcome {
    if *op == MachineOp::Settle && machine.there().exit_is_handled_elsewhere(machine_record) {
        return Ok(());
    }
    let fresh = if makes_domain(op) { machines.fresh() } else { Domid(0) };
    let state = machine.there().state((op, fresh), machine_record, &machines.volumes);
    let plan = plan::plan(op, &state)?;
    if let DomainState::There { .. } = state.domain {
        machines.memory.made(machine.vm);
    } else {
        machines.memory.release(machine.vm);
        let needed = plan.steps().iter().find_map(|step| match step.verb {
            StepAction::TakeMemory(bytes) => Some(bytes),
            _ => None,
        });
        // Before anything is begun, so that nothing is to be undone.
        if let Some(needed) = needed {
            machines.take_memory(machine.vm, needed).map_err(no_memory)?;
        }
    }
    let (machines_too, machine_too) = (Arc::clone(machines), Arc::clone(machine));
    let by = MachineStepRunner::new(
        machines_too,
        machine_too,
        machine_record.clone(),
        Arc::clone(progress),
    );
    let plan_outcome = machines.executor.run(plan, machine.vm, Arc::new(by), cancel).await;
    match plan_outcome {
        PlanOutcome { cut: true, .. } => Err(OpError::Cancelled),
        PlanOutcome { failed: Some((verb, error)), .. } => Err(OpError::Failed { verb, error }),
        PlanOutcome { failed: None, cut: false } => Ok(()),
    }
}

/// Asks the hypervisor what is there.
async fn look(machines: &Arc<Machines>, machine: &Arc<Machine>) {
    let domain_info = timeout(FIND_DEADLINE, machines.drivers.hv.find(machine.vm)).await;
    let mut observed = machine.there();
    match domain_info {
        Ok(Ok(domain_info)) => observed.update_domain(domain_info),
        Ok(Err(error)) => {
            tracing::warn!(vm = %machine.vm, %error, "cannot tell what is there");
            observed.mark_unknown();
        }
        Err(_) => observed.mark_unknown(),
    }
}

/// One that does not answer is none: the end of a guest has been told, and whoever asked knows that
/// it is this domain's.
fn has_living_domain(machine: &Machine) -> bool {
    let there = machine.there().domain;
    let alive = |run| matches!(run, RunState::Fresh | RunState::Running | RunState::Paused);
    matches!(there, DomainState::There { run, .. } if alive(run))
}

fn makes_domain(op: &MachineOp) -> bool {
    matches!(
        op,
        MachineOp::Start { .. }
            | MachineOp::CleanReboot
            | MachineOp::HardReboot
            | MachineOp::AfterExit(_)
    )
}

fn no_memory(MemoryShortfall { needed, available }: MemoryShortfall) -> OpError {
    let (needed_bytes, available_bytes) = (needed, available);
    OpError::Refused(Refusal::NotEnoughMemory { needed_bytes, available_bytes })
}
