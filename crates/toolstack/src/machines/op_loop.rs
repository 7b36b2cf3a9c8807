//! Operation loop of a machine, which executes its operations one after the other.
//!
//! The loop is a task that exists while there is work. After a failed or cancelled operation it
//! reconciles the machine, so that the next operation begins from a recorded state. The caller's
//! answer waits for that, but at most [`ANSWER_GRACE`].

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

/// Longest wait of a failed operation's answer for the reconciliation. Healthy storage takes less,
/// and no caller waits for hung storage.
const ANSWER_GRACE: Duration = Duration::from_millis(500);
/// Longest wait for the hypervisor's state of one machine. After that the domain counts as silent.
const FIND_DEADLINE: Duration = Duration::from_secs(2);

type Outcome = Result<(), OpError>;
type ReplySender = oneshot::Sender<Outcome>;

/// Executes a machine's operations until there is no work.
pub(super) async fn run_op_loop(machines: Arc<Machines>, machine: Arc<Machine>) {
    // Answer of a failed operation that is not sent yet.
    let mut owed: Option<(ReplySender, Outcome)> = None;
    loop {
        // Separate statement: in the `match` the queue would stay locked.
        let next = machine.queue().take();
        match next {
            NextAction::Turn(queued_op) => {
                answer(owed.take());
                owed = run_queued_op(&machines, &machine, queued_op).await;
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

/// Sends the answer. The caller may have gone.
fn answer(owed: Option<(ReplySender, Outcome)>) {
    if let Some((reply_sender, outcome)) = owed {
        let _ = reply_sender.send(outcome);
    }
}

/// Executes one operation. Returns the answer if a reconciliation comes first.
async fn run_queued_op(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    queued_op: QueuedOp,
) -> Option<(ReplySender, Outcome)> {
    let QueuedOp { op, op_hooks, deadline, reply_sender, .. } = queued_op;
    let outcome = match may_begin(&op_hooks, deadline) {
        Ok(()) => {
            (op_hooks.noted)().await;
            execute_op(machines, machine, &op, (&op_hooks.progress, &op_hooks.cancel)).await
        }
        Err(error) => {
            answer(Some((reply_sender, Err(error))));
            return None;
        }
    };
    if let Err(OpError::Cancelled | OpError::Failed { .. }) = outcome {
        machine.queue().request_reconcile();
        return Some((reply_sender, outcome));
    }
    answer(Some((reply_sender, outcome)));
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

/// Reconciles the machine.
///
/// A failed reconciliation is not retried by itself, because hung storage would make it run for
/// ever. The end of an abandoned call starts it again, and so does the next operation if it depends
/// on it.
async fn settle(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    cancel: CancelToken,
    owed: &mut Option<(ReplySender, Outcome)>,
) {
    let unwatched: ProgressFn = Arc::new(|_| ());
    let settled = execute_op(machines, machine, &MachineOp::Reconcile, (&unwatched, &cancel));
    tokio::pin!(settled);
    let outcome = match timeout(ANSWER_GRACE, &mut settled).await {
        Ok(outcome) => outcome,
        Err(_) => {
            answer(owed.take());
            settled.await
        }
    };
    if let Err(error) = outcome {
        tracing::warn!(vm = %machine.vm, %error, "cannot reconcile the machine");
    }
}

/// Plans an operation from the observed state and executes it.
async fn execute_op(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    op: &MachineOp,
    by: (&ProgressFn, &CancelToken),
) -> Outcome {
    observe(machines, machine).await;
    let machine_record = machines.records.machine(machine.vm)?;
    if let MachineOp::AfterExit(_) = op {
        if has_living_domain(machine) {
            // Another operation has already replaced the domain.
            return Ok(());
        }
        // The domain may be kept, but it boots no longer.
        machines.boots.ended(machine.vm);
    }
    // An earlier reconciliation has failed. A plug or insert needs the recorded volume. A guest
    // whose disk is not served cannot react to requests.
    let strays = makes_domain(op) || matches!(op, MachineOp::VbdPlug(_) | MachineOp::Insert(_));
    let unserved = !makes_domain(op)
        && !matches!(op, MachineOp::HardShutdown | MachineOp::Reset | MachineOp::Reconcile);
    let first = {
        let observed = machine.observed();
        strays && observed.has_stale_volumes(&machine_record) || unserved && observed.has_unserved()
    };
    if first {
        let unwatched: ProgressFn = Arc::new(|_| ());
        walk(machines, machine, (&MachineOp::Reconcile, &machine_record), (&unwatched, by.1))
            .await?;
    }
    walk(machines, machine, (op, &machine_record), by).await
}

async fn walk(
    machines: &Arc<Machines>,
    machine: &Arc<Machine>,
    (op, machine_record): (&MachineOp, &MachineRecord),
    (progress, cancel): (&ProgressFn, &CancelToken),
) -> Outcome {
    if *op == MachineOp::Reconcile && machine.observed().exit_is_handled_elsewhere(machine_record) {
        return Ok(());
    }
    let fresh = if makes_domain(op) { machines.fresh() } else { Domid(0) };
    let state = machine.observed().state((op, fresh), machine_record, &machines.volumes);
    let plan = plan::plan(op, &state)?;
    if let DomainState::Present { .. } = state.domain {
        machines.memory.made(machine.vm);
    } else {
        machines.memory.release(machine.vm);
        let needed = plan.steps().iter().find_map(|step| match step.verb {
            StepAction::TakeMemory(bytes) => Some(bytes),
            _ => None,
        });
        // Check before the first step, so that there is nothing to undo.
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
    if plan_outcome.cut || plan_outcome.failed.is_some() {
        machines.boots.failed(machine.vm);
    } else if let MachineOp::Start { paused: true } = op {
        // Its CPUs run when a user wants it. That is no part of a boot.
        machines.boots.ended(machine.vm);
    }
    match plan_outcome {
        PlanOutcome { cut: true, .. } => Err(OpError::Cancelled),
        PlanOutcome { failed: Some((verb, error)), .. } => Err(OpError::Failed { verb, error }),
        PlanOutcome { failed: None, cut: false } => Ok(()),
    }
}

/// Queries the hypervisor.
async fn observe(machines: &Arc<Machines>, machine: &Arc<Machine>) {
    let domain_info = timeout(FIND_DEADLINE, machines.drivers.hv.find(machine.vm)).await;
    let mut observed = machine.observed();
    match domain_info {
        Ok(Ok(domain_info)) => observed.update_domain(domain_info),
        Ok(Err(error)) => {
            tracing::warn!(vm = %machine.vm, %error, "cannot query the domain");
            observed.mark_unknown();
        }
        Err(_) => observed.mark_unknown(),
    }
}

/// Returns whether the machine has a running or paused domain. A silent one does not count: its end
/// was reported, and the caller knows that it is this domain's.
fn has_living_domain(machine: &Machine) -> bool {
    let there = machine.observed().domain;
    let alive = |run| matches!(run, RunState::Created | RunState::Running | RunState::Paused);
    matches!(there, DomainState::Present { run, .. } if alive(run))
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
