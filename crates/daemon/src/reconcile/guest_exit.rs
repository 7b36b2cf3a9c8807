//! Guests that exit on their own.

use std::sync::Arc;
use std::time::Duration;

use error_causes::error_chain;
use model::id::{Domid, VmId};
use model::plan::MachineOp;
use model::refusal::Refusal;
use model::vm::exits::{
    CRASH_WINDOW, CRASHES_MAX, DomainExit, ExitAction, ExitPolicy, is_crash, next, restart_delay,
};
use model::vm::{PowerState, VmOp};
use toolstack::machines::OpError;
use xenapi::table::{vm, vm_metrics};
use xenapi::{ApiError, Date, Value};

use super::restarts;
use crate::app::AppState;
use crate::db::{Db, Ref, Tx};
use crate::ops::current_ops::CurrentOp;
use crate::ops::message::{MessageDraft, create_message, write};
use crate::ops::pending_op::{self, PendingOpIntent};
use crate::ops::run::{OpCaller, Precheck, VmOpRequest, gone, no_slow_precheck, run_vm_op};
use crate::records::fields::{int, reference, text};
use crate::records::{bootable, machine_config};

/// A VM whose guest has exited.
struct ExitedGuest {
    vm: VmId,
    machine: Ref,
    name: String,
    after: ExitPolicy,
    /// Time that the guest ran.
    ran: Duration,
}

/// Carries out the configured action for a guest exit, unless an operation has caused the exit.
pub(super) async fn ended(app: &Arc<AppState>, vm: VmId, domid: Domid, exit: DomainExit) {
    let Ok(it) = read(&app.db, vm, app.clock.date()) else { return };
    let mut then = next(exit, &it.after);
    let restarts = then == ExitAction::Restart && is_crash(exit);
    let crashes = if restarts { app.restarts.crashed(vm, it.ran) } else { 0 };
    let delay = restart_delay(exit, it.ran, crashes);
    if crashes >= CRASHES_MAX {
        // A start by a user counts from the beginning.
        app.restarts.call_off(app, vm);
        let why = format!(
            "It crashed {crashes} times, each within {} s of its start; it is not started again. \
             See its console and its disks, then start it",
            CRASH_WINDOW.as_secs()
        );
        report(app, &it, "VM_RESTART_FAILED", &why);
        then = ExitAction::Halt;
    }
    if then == ExitAction::Restart
        && let Err(why) = bootable(&app.db, vm, &app.settings.boot)
    {
        report(app, &it, "VM_RESTART_FAILED", &format!("The machine cannot boot again: {why}"));
        then = ExitAction::Halt;
    }
    let waits = then == ExitAction::Restart && !delay.is_zero();
    // This halt queues like a normal operation. A forced one would preempt the operation that waits
    // for this exit.
    let halt = MachineOp::AfterExit(DomainExit::Asked(VmOp::HardShutdown));
    let op = match then {
        ExitAction::Halt => halt,
        ExitAction::Restart if waits => halt,
        ExitAction::Restart | ExitAction::Keep => MachineOp::AfterExit(exit),
    };
    let pending_op_intent = match then {
        ExitAction::Halt => Some(PendingOpIntent::this(VmOp::HardShutdown)),
        ExitAction::Restart if waits => {
            Some(PendingOpIntent { stays: true, ..PendingOpIntent::this(VmOp::Start) })
        }
        ExitAction::Restart => Some(PendingOpIntent::this(VmOp::HardReboot)),
        ExitAction::Keep => None,
    };
    let vm_op_request =
        VmOpRequest { pending_op_intent, ..work(app, &it, domid, (exit, then), op) };
    let caller = OpCaller::nobody();
    match run_vm_op(app, &caller, &vm_op_request).await {
        Ok(()) if waits => {
            let of = (it.vm, &it.machine, &*it.name);
            if let Err(why) = restarts::restart(app, of, delay, &caller.key).await {
                report(app, &it, "VM_RESTART_FAILED", &why);
            }
        }
        Ok(()) => {}
        Err(error) => failed(app, &it, &error),
    }
}

/// Reports why an exit was not handled, unless another operation handles it.
fn failed(app: &AppState, it: &ExitedGuest, error: &OpError) {
    match error {
        OpError::Cancelled => {}
        OpError::Refused(why) if is_dealt_with(why) => {
            tracing::debug!(vm = %it.vm, ?why, "another operation handles this guest exit");
        }
        error => report(app, it, "VM_END_FAILED", &error_chain(error)),
    }
}

/// Returns whether another operation handles the exit or the VM. Any other refusal leaves a VM
/// recorded as running without a guest, so it must be reported.
fn is_dealt_with(why: &Refusal) -> bool {
    matches!(why, Refusal::NotAllowed(_) | Refusal::BadPowerState { .. })
}

fn read(db: &Db, vm: VmId, now: Date) -> Result<ExitedGuest, ApiError> {
    db.read(|view| {
        let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?.clone();
        let metrics = reference(view, &machine, vm::Field::metrics)?;
        let began = match view.get(&metrics, vm_metrics::Field::start_time) {
            Ok(Value::Date(Date(began))) => *began,
            _ => now.0,
        };
        let name = text(view, &machine, vm::Field::name_label)?.to_owned();
        let ran = Duration::from_secs(u64::try_from(now.0 - began).unwrap_or_default());
        let after = machine_config::after(view, &machine)?;
        Ok(ExitedGuest { vm, machine, name, after, ran })
    })
}

fn work(
    app: &AppState,
    it: &ExitedGuest,
    domid: Domid,
    (exit, then): (DomainExit, ExitAction),
    op: MachineOp,
) -> VmOpRequest {
    let (word, priority, what) = match exit {
        DomainExit::PoweredOff => ("VM_SHUTDOWN", 5, "switched itself off"),
        DomainExit::Rebooted => ("VM_REBOOTED", 5, "rebooted"),
        DomainExit::Panicked => ("VM_CRASHED", 3, "crashed"),
        DomainExit::Killed | DomainExit::Asked(_) => ("VM_CRASHED", 3, "was killed"),
    };
    let follows = match then {
        ExitAction::Halt => "the machine is halted",
        ExitAction::Restart => "the machine is started again",
        ExitAction::Keep => "the machine is kept as it is, to be examined",
    };
    let body = format!("The guest of `{}` {what}; {follows}.", it.name);
    let (of, uuid, now) = (it.machine.clone(), it.vm.to_string(), app.clock.date());
    let gate: Precheck = Arc::new(move |tx| {
        is_still(tx, &of, domid)?;
        let message_draft =
            MessageDraft { name: word, priority, cls: "VM", uuid: &uuid, body: &body };
        write(tx, &message_draft, now).map(drop).map_err(gone)
    });
    let field = vm::Field::current_operations.into();
    let mark = |op: VmOp| vec![CurrentOp { of: it.machine.clone(), field, op: op.name() }];
    let marks = match then {
        ExitAction::Halt => mark(VmOp::HardShutdown),
        ExitAction::Restart => mark(VmOp::HardReboot),
        ExitAction::Keep => Vec::new(),
    };
    VmOpRequest {
        vm: it.vm,
        op,
        marks,
        slow_precheck: no_slow_precheck(),
        gate,
        pending_op_intent: None,
    }
}

/// Checks that the ended domain is still the VM's domain and that no operation has ended it.
fn is_still(tx: &Tx<'_>, machine: &Ref, domid: Domid) -> Result<(), Refusal> {
    let view = tx.view();
    let now = int(&view, machine, vm::Field::domid).map_err(gone)?;
    let power = machine_config::power(&view, machine).map_err(gone)?;
    // A former daemon may have begun to end the domain, or has reported its exit.
    if pending_op::of(&view, machine).is_some_and(|pending_op| pending_op.domid == Some(domid)) {
        return Err(Refusal::NotAllowed("an operation ends this domain".into()));
    }
    let alive = matches!(power, PowerState::Running | PowerState::Paused);
    if alive && now == i64::from(domid.0) {
        return Ok(());
    }
    Err(Refusal::NotAllowed("the machine has another domain by now, or none".into()))
}

fn report(app: &AppState, it: &ExitedGuest, name: &str, why: &str) {
    let uuid = it.vm.to_string();
    let body = format!("After the end of the guest of `{}`: {why}", it.name);
    let message_draft = MessageDraft { name, priority: 2, cls: "VM", uuid: &uuid, body: &body };
    create_message(&app.db, &message_draft, app.clock.date());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_nobody_else_makes_good_is_told() {
        let elsewhere = Refusal::NotAllowed("the machine has another domain".into());
        assert!(is_dealt_with(&elsewhere));
        let memory = Refusal::NotEnoughMemory { needed_bytes: 2, available_bytes: 1 };
        assert!(!is_dealt_with(&memory));
    }
}
