//! Finishes pending ops of a former daemon.
//!
//! A shutdown or reboot continues after the daemon died: its guest may have seen the request or be
//! gone already, so it cannot be undone. Starts come last, after every VM is reconciled. They are
//! automatic starts after a host boot, and restarts after a crash.

use std::sync::Arc;

use error_causes::error_chain;
use model::id::{Domid, VmId};
use model::plan::{DomainState, MachineOp, RunState};
use model::vm::{PowerState, VmOp};
use toolstack::machines::OpError;
use xenapi::table::vm;

use super::settle;
use crate::app::AppState;
use crate::calls::vm_lifecycle;
use crate::db::{Object, Ref, View};
use crate::ops::message::{MessageDraft, create_message};
use crate::ops::pending_op::{self, PendingOp, PendingOpIntent, TRIES, reboots};
use crate::ops::run::{OpCaller, VmOpRequest, run_vm_op};
use crate::records::fields::text;
use crate::records::machine_config;

/// Names of messages about failures.
const START_FAILED: &str = "VM_AUTO_POWERON_FAILED";
const RESTART_FAILED: &str = "VM_RESTART_FAILED";
const END_FAILED: &str = "VM_END_FAILED";

/// Continues the pending op of a VM. Afterwards only a start can remain pending.
pub(super) async fn go_on(app: &AppState, vm: VmId, machine: &Ref, pending_op: &PendingOp) {
    if app.db.read(|view| owes_start(view, machine)).is_some() {
        return settle(app, vm).await;
    }
    match rest(pending_op, app.machines.domain(vm)) {
        Some(op) if pending_op.tries < TRIES => match begin(app, machine, op, pending_op).await {
            // A hard shutdown has superseded it.
            Ok(()) | Err(OpError::Cancelled) => {}
            Err(error) => report(app, machine, name(pending_op.op), &error_chain(&error)),
        },
        Some(_) => report(app, machine, name(pending_op.op), &given_up(pending_op)),
        None => {}
    }
    // This finds nothing to do if the operation did its part.
    settle(app, vm).await;
    let _ = app.db.write_observed(|tx| pending_op::over(tx, machine, &pending_op.by));
}

/// Returns the operation that remains, given the observed domain.
fn rest(pending_op: &PendingOp, seen: DomainState) -> Option<MachineOp> {
    let (clean, by_force) = match pending_op.op {
        VmOp::CleanShutdown => (Some(MachineOp::CleanShutdown), MachineOp::Reset),
        VmOp::CleanReboot => (Some(MachineOp::CleanReboot), MachineOp::HardReboot),
        op if reboots(op) => (None, MachineOp::HardReboot),
        op if pending_op::ends(op) => (None, MachineOp::Reset),
        // Starts come later.
        _ => return None,
    };
    let is_before = |domid: Domid| pending_op.domid == Some(domid);
    match (seen, clean) {
        // The guest of the new domain runs, but this was not recorded.
        (DomainState::Present { domid, run: RunState::Running }, _)
            if reboots(pending_op.op) && !is_before(domid) =>
        {
            None
        }
        (DomainState::Present { run: RunState::Running, .. }, Some(clean)) => Some(clean),
        (DomainState::Present { domid, run: RunState::Unresponsive }, Some(clean))
            if is_before(domid) =>
        {
            Some(clean)
        }
        // A paused guest cannot be asked, and no forced end was requested.
        (DomainState::Present { domid, run: RunState::Paused }, Some(_)) if is_before(domid) => {
            None
        }
        _ => Some(by_force),
    }
}

/// Begins a further attempt.
async fn begin(
    app: &AppState,
    machine: &Ref,
    op: MachineOp,
    pending_op: &PendingOp,
) -> Result<(), OpError> {
    let vm_op_request = vm_lifecycle::work(app, machine, pending_op.op, op)?;
    let pending_op_intent = PendingOpIntent {
        op: pending_op.op,
        tries: pending_op.tries.saturating_add(1),
        stays: false,
    };
    let vm_op_request = VmOpRequest { pending_op_intent: Some(pending_op_intent), ..vm_op_request };
    run_vm_op(app, &OpCaller::again(pending_op.by.clone()), &vm_op_request).await
}

/// Starts a VM if its pending op still has this key. Otherwise a later operation has replaced it.
///
/// # Errors
/// Those of any start. No op is pending then.
pub(super) async fn start(app: &AppState, machine: &Ref, by: &str) -> Result<(), OpError> {
    let pending_op =
        app.db.read(|view| pending_op::of(view, machine)).filter(|pending_op| pending_op.by == by);
    let Some(pending_op) = pending_op else { return Ok(()) };
    let op = MachineOp::Start { paused: false };
    begin(app, machine, op, &PendingOp { op: VmOp::Start, ..pending_op }).await
}

/// Returns the VMs with a pending start.
pub(super) fn starts(app: &AppState) -> Vec<(Ref, PendingOp)> {
    app.db.read(|view| {
        let machines = view.all(&vm::CLASS).map(Object::reference);
        machines.filter_map(|machine| Some((machine.clone(), owes_start(view, machine)?))).collect()
    })
}

/// Returns the pending start of a VM. The second half of a failed reboot counts as one.
fn owes_start(view: &View<'_>, machine: &Ref) -> Option<PendingOp> {
    let pending_op = pending_op::of(view, machine)?;
    let is_down = || machine_config::power(view, machine) == Ok(PowerState::Halted);
    (pending_op.op == VmOp::Start || reboots(pending_op.op) && is_down()).then_some(pending_op)
}

/// Spawns the pending starts without waiting for them.
pub(super) fn begin_starts(app: &Arc<AppState>, machines: Vec<(Ref, PendingOp)>, same_boot: bool) {
    let name = if same_boot { RESTART_FAILED } else { START_FAILED };
    for (machine, pending_op) in machines {
        let app = app.clone();
        tokio::spawn(async move {
            if pending_op.tries >= TRIES {
                report(&app, &machine, name, &given_up(&pending_op));
                let _ = app.db.write_observed(|tx| pending_op::over(tx, &machine, &pending_op.by));
            } else if let Err(error) = start(&app, &machine, &pending_op.by).await {
                report(&app, &machine, name, &error_chain(&error));
            }
        });
    }
}

fn name(op: VmOp) -> &'static str {
    if reboots(op) { RESTART_FAILED } else { END_FAILED }
}

fn given_up(pending_op: &PendingOp) -> String {
    format!("{} daemons ended during this operation; it is not tried again", pending_op.tries)
}

fn report(app: &AppState, machine: &Ref, name: &str, why: &str) {
    let uuid = app.db.read(|view| text(view, machine, vm::Field::uuid).map(str::to_owned));
    let Ok(uuid) = uuid else { return };
    let what = match name {
        START_FAILED => "was not started with its host",
        RESTART_FAILED => "was not started again",
        _ => "was not fully ended",
    };
    let body = format!("The machine {what}: {why}");
    let message_draft = MessageDraft { name, priority: 2, cls: "VM", uuid: &uuid, body: &body };
    create_message(&app.db, &message_draft, app.clock.date());
}
