//! Messages of class `VM` about power states.

use std::sync::Arc;

use model::plan::MachineOp;
use model::refusal::Refusal;
use model::vbd::VbdOp;
use model::vdi::automaton::Access;
use model::vm::{PowerState, Strictness, VmOp};
use toolstack::machines::OpError;
use xenapi::table::{host, vbd, vm};
use xenapi::{ApiError, codes};

use crate::app::AppState;
use crate::db::{Ref, View};
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::errors::{About, failed, refused};
use crate::facts;
use crate::ops::current_ops::CurrentOp;
use crate::ops::pending_op::{self, PendingOpIntent};
use crate::ops::run::{
    OpCaller, Precheck, SlowPrecheck, VmOpRequest, at_once, cancellable, gone, id_of,
    no_slow_precheck, run_vm_op,
};
use crate::records::boot_times::record_boots;
use crate::records::fields::{flag, reference, references};
use crate::records::machine_config::makes_domain;
use crate::records::{bootable, machine_config};

/// Lists the operations of this file, which share one handler. `plan_of` has their differences.
macro_rules! handlers {
    ($($name:literal $op:ident;)*) => {
        pub(crate) const CALLS: &[(&str, Handler)] = &[$((
            concat!("VM.", $name),
            cancellable!(may_begin, life, VmOp::$op),
        ),)*];
    };
}

handlers! {
    "start" Start;
    "start_on" StartOn;
    "clean_shutdown" CleanShutdown;
    "hard_shutdown" HardShutdown;
    "shutdown" Shutdown;
    "clean_reboot" CleanReboot;
    "hard_reboot" HardReboot;
    "pause" Pause;
    "unpause" Unpause;
    "power_state_reset" PowerStateReset;
    "suspend" Suspend;
    "resume" Resume;
    "resume_on" ResumeOn;
    "checkpoint" Checkpoint;
    "pool_migrate" PoolMigrate;
    "migrate_send" MigrateSend;
    "send_sysrq" SendSysrq;
    "send_trigger" SendTrigger;
    "call_plugin" CallPlugin;
    "query_services" QueryServices;
}

/// Checks whether the operation may begin, before a task exists.
fn may_begin(ctx: &Ctx, args: &Args, op: VmOp) -> Result<(), ApiError> {
    let machine = args.object();
    if stops(op) && ctx.app.restarts.is_waiting(ctx.read(|view| id_of(view, &machine))?) {
        return Ok(());
    }
    let checked = ctx.read(|view| check(view, &machine, op));
    at_once(checked).map_err(|why| refused(&ctx.app.db, why, &About::vm(&machine, op)))?;
    if makes_domain(op) { bootable_here(ctx, &machine) } else { Ok(()) }
}

/// Checks that the VM can boot on this host.
///
/// # Errors
/// The reason why it cannot.
pub(super) fn bootable_here(ctx: &Ctx, machine: &Ref) -> Result<(), ApiError> {
    ctx.read(enabled)?;
    let vm = ctx.read(|view| id_of(view, machine))?;
    match bootable(&ctx.app.db, vm, &ctx.app.settings.boot) {
        Err(why) => Err(codes::bootloader_failed(machine.as_str(), why)),
        Ok(_) => ctx.read(|view| {
            // An operation on a VDI is no reason to refuse: the start waits for it.
            let checked = disks(view, machine, at_once);
            checked.map_err(|(slot, why)| About::vbd(view, &slot, VbdOp::Attach).refused(why))
        }),
    }
}

async fn life(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let machine = args.object();
    let about = About::vm(&machine, op);
    let paused = args.flag("start_paused");
    let vm = ctx.read(|view| id_of(view, &machine))?;
    // A VM that waits for its restart is halted. To stop it is to call the restart off.
    if (stops(op) || makes_domain(op)) && ctx.app.restarts.call_off(&ctx.app, vm) && stops(op) {
        return Ok(nothing());
    }
    let ended = match op {
        VmOp::Shutdown => shutdown(&ctx, &machine).await,
        _ => match plan_of(op, paused) {
            Some(plan) => run(&ctx, &machine, op, plan).await,
            None => Err(OpError::Refused(Refusal::NotImplemented)),
        },
    };
    // A client that has waited for the end of the call finds the times of the boot, and no stage of a
    // boot that ended.
    record_boots(&ctx.app, [vm]);
    ended.map_err(|error| {
        let of_disk = match &error {
            OpError::Refused(why) if makes_domain(op) => refused_disk(&ctx, &machine, why),
            _ => None,
        };
        failed(&ctx.app.db, error, &of_disk.unwrap_or(about))
    })?;
    Ok(nothing())
}

/// Returns the disk that caused the refusal, if it still does.
fn refused_disk(ctx: &Ctx, machine: &Ref, why: &Refusal) -> Option<About> {
    ctx.read(|view| match disks(view, machine, |checked| checked) {
        Err((slot, refusal)) if refusal == *why && slot != *machine => {
            Some(About::vbd(view, &slot, VbdOp::Attach))
        }
        _ => None,
    })
}

/// Returns whether the operation halts a VM.
fn stops(op: VmOp) -> bool {
    use VmOp::{CleanShutdown, HardShutdown, PowerStateReset, Shutdown};
    matches!(op, CleanShutdown | HardShutdown | Shutdown | PowerStateReset)
}

fn plan_of(op: VmOp, paused: bool) -> Option<MachineOp> {
    Some(match op {
        VmOp::Start | VmOp::StartOn => MachineOp::Start { paused },
        VmOp::CleanShutdown => MachineOp::CleanShutdown,
        VmOp::HardShutdown => MachineOp::HardShutdown,
        VmOp::CleanReboot => MachineOp::CleanReboot,
        VmOp::HardReboot => MachineOp::HardReboot,
        VmOp::Pause => MachineOp::Pause,
        VmOp::Unpause => MachineOp::Unpause,
        VmOp::PowerStateReset => MachineOp::Reset,
        _ => return None,
    })
}

/// Carries out an operation of a VM as part of another one.
///
/// # Errors
/// Those of the operation.
pub(super) async fn carry_out(
    ctx: &Ctx,
    machine: &Ref,
    op: VmOp,
    plan: MachineOp,
) -> Result<(), ApiError> {
    let ended = run(ctx, machine, op, plan).await;
    ended.map_err(|error| failed(&ctx.app.db, error, &About::vm(machine, op)))
}

async fn run(ctx: &Ctx, machine: &Ref, op: VmOp, plan: MachineOp) -> Result<(), OpError> {
    let vm_op_request = work(&ctx.app, machine, op, plan)?;
    run_vm_op(&ctx.app, &OpCaller::of(ctx), &vm_op_request).await
}

/// Builds the request for a VM operation.
///
/// # Errors
/// The VM does not exist.
pub(crate) fn work(
    app: &AppState,
    machine: &Ref,
    op: VmOp,
    plan: MachineOp,
) -> Result<VmOpRequest, OpError> {
    let vm = app.db.read(|view| id_of(view, machine));
    let vm = vm.map_err(|error| OpError::Refused(gone(error)))?;
    let of = machine.clone();
    let gate: Precheck = Arc::new(move |tx| {
        check(&tx.view(), &of, op)?;
        if !makes_domain(op) {
            return Ok(());
        }
        disks(&tx.view(), &of, |checked| checked).map_err(|(_, refusal)| refusal)
    });
    let slow_precheck: SlowPrecheck = if makes_domain(op) {
        let (db, places) = (app.db.clone(), app.settings.boot.clone());
        Arc::new(move || bootable(&db, vm, &places).map(drop).map_err(Refusal::NotAllowed))
    } else {
        no_slow_precheck()
    };
    let field = vm::Field::current_operations.into();
    let marks = vec![CurrentOp { of: machine.clone(), field, op: op.name() }];
    // Only operations that end a domain become pending ops, because they cannot be undone. A client
    // whose start is lost starts the VM again.
    let pending_op_intent = pending_op::ends(op).then(|| PendingOpIntent::this(op));
    Ok(VmOpRequest { vm, op: plan, marks, slow_precheck, gate, pending_op_intent })
}

/// Shuts a VM down cleanly if the guest cooperates, else by force.
async fn shutdown(ctx: &Ctx, machine: &Ref) -> Result<(), OpError> {
    let power = ctx.read(|view| machine_config::power(view, machine));
    if power == Ok(PowerState::Running) {
        match run(ctx, machine, VmOp::CleanShutdown, MachineOp::CleanShutdown).await {
            Err(OpError::Failed { .. }) => {}
            ended => return ended,
        }
    }
    run(ctx, machine, VmOp::HardShutdown, MachineOp::HardShutdown).await
}

fn check(view: &View<'_>, machine: &Ref, op: VmOp) -> Result<(), Refusal> {
    let facts = facts::vm(view, machine).map_err(gone)?;
    model::vm::check(op, &facts, Strictness::Lenient)
}

/// Checks that the host is enabled.
fn enabled(view: &View<'_>) -> Result<(), ApiError> {
    for host in view.all(&host::CLASS) {
        let host = host.reference();
        if !flag(view, host, host::Field::enabled)? {
            return Err(codes::host_disabled(host.as_str()));
        }
    }
    Ok(())
}

type Checked = Result<(), Refusal>;

/// Checks that every VBD can be attached, all at once. The error names the first one that cannot.
/// `counts` filters refusals.
fn disks(
    view: &View<'_>,
    machine: &Ref,
    counts: impl Fn(Checked) -> Checked,
) -> Result<(), (Ref, Refusal)> {
    let of_machine = |error| (machine.clone(), gone(error));
    let vm = facts::vm(view, machine).map_err(of_machine)?;
    let mut used = Vec::new();
    for slot in references(view, machine, vm::Field::VBDs).map_err(of_machine)? {
        let facts = facts::vbd(view, &slot).map_err(of_machine)?;
        let mut checked = model::vbd::check(VbdOp::Attach, &facts, &vm, Strictness::Lenient);
        let disk = reference(view, &slot, vbd::Field::VDI).map_err(of_machine)?;
        let is_written = facts.mode == Access::Rw;
        let beside = |(other, writes): &(Ref, bool)| *other == disk && (*writes || is_written);
        if facts.vdi.is_some_and(|vdi| !vdi.sharable) {
            let in_use = if used.iter().any(beside) { Err(Refusal::VdiInUse) } else { Ok(()) };
            checked = checked.and(in_use);
            used.push((disk, is_written));
        }
        counts(checked).map_err(|refusal| (slot, refusal))?;
    }
    Ok(())
}
