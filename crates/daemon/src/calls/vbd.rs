//! Messages of class `VBD`.

pub(crate) mod create;

use std::sync::Arc;

use error_causes::error_chain;
use model::plan::MachineOp;
use model::refusal::Refusal;
use model::vbd::VbdOp;
use model::vdi::VdiOp;
use model::vm::{PowerState, Strictness};
use xenapi::table::vbd;
use xenapi::{ApiError, codes};

use crate::db::{Ref, View};
use crate::dispatch::generic::{self, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::errors::{About, failed, refused};
use crate::facts;
use crate::ops::current_ops::CurrentOp;
use crate::ops::run::{
    OpCaller, Precheck, VmOpRequest, at_once, cancellable, gone, id_of, no_slow_precheck, run_vm_op,
};
use crate::records::fields::{flag, reference, uuid};
use crate::records::{effects, machine_config};

pub(super) use crate::ops::vbd_settings::HOOKS;
pub(crate) use crate::ops::vbd_settings::reapply;
pub(super) use create::numbers;

pub(super) const CALLS: &[(&str, Handler)] = &[
    ("VBD.create", Handler::Short(create::create)),
    ("VBD.destroy", Handler::Short(create::destroy)),
    ("VBD.plug", cancellable!(may_begin, device, VbdOp::Plug)),
    ("VBD.unplug", cancellable!(may_begin, device, VbdOp::Unplug)),
    ("VBD.unplug_force", cancellable!(may_begin, device, VbdOp::UnplugForce)),
    ("VBD.insert", cancellable!(may_begin, device, VbdOp::Insert)),
    ("VBD.eject", cancellable!(may_begin, device, VbdOp::Eject)),
    ("VBD.set_mode", Handler::Short(|ctx, args| generic::set(ctx, args, vbd::Field::mode))),
    ("VBD.assert_attachable", Handler::Short(assert_attachable)),
];

/// Checks whether the operation may begin, before a task exists.
fn may_begin(ctx: &Ctx, args: &Args, op: VbdOp) -> Result<(), ApiError> {
    let (slot, disk) = (args.object(), inserted(args, op));
    let (checked, about) = ctx.read(|view| {
        (check(view, &slot, op, disk.as_ref()), about(view, &slot, op, disk.as_ref()))
    });
    at_once(checked).map_err(|why| refused(&ctx.app.db, why, &about))
}

async fn device(ctx: Ctx, args: Args, op: VbdOp) -> CallResult {
    let (slot, disk) = (args.object(), inserted(&args, op));
    let about = ctx.read(|view| about(view, &slot, op, disk.as_ref()));
    if medium_at_rest(&ctx, &slot, op, disk.as_ref(), &about)? {
        return Ok(nothing());
    }
    let vm_op_request = ctx.read(|view| work(view, &slot, op, disk.clone()))?;
    still_mounted(&ctx, &slot, &vm_op_request).await?;
    let ended = run_vm_op(&ctx.app, &OpCaller::of(&ctx), &vm_op_request).await;
    if ended.is_err() && op == VbdOp::Insert {
        not_inserted(&ctx, &slot);
    }
    ended.map_err(|error| failed(&ctx.app.db, error, &about))?;
    Ok(nothing())
}

/// Refuses to unplug a disk on which the guest's agent reports a mounted file system. Whoever wants
/// that anyway forces it. A guest without an agent, or with one that does not answer in time,
/// cannot be asked.
async fn still_mounted(ctx: &Ctx, slot: &Ref, vm_op_request: &VmOpRequest) -> Result<(), ApiError> {
    let MachineOp::VbdUnplug { vbd, force: false } = vm_op_request.op else { return Ok(()) };
    let vm = vm_op_request.vm;
    let points = ctx.app.drivers.hv.mounts(vm, vbd).await.unwrap_or_else(|error| {
        let why = error_chain(&error);
        tracing::info!(%vm, %vbd, "unplugging a disk; its guest does not say what is mounted: {why}");
        Vec::new()
    });
    if points.is_empty() {
        return Ok(());
    }
    let why = format!(
        "the guest has mounted it at {}: unmount it in the guest, or unplug it by force \
         (VBD.unplug_force, xe vbd-unplug force=true), which gives the guest I/O errors",
        points.join(", ")
    );
    Err(codes::device_detach_rejected("VBD", slot.as_str(), why))
}

/// Returns the VDI to insert.
fn inserted(args: &Args, op: VbdOp) -> Option<Ref> {
    (op == VbdOp::Insert).then(|| args.reference("vdi"))
}

fn about(view: &View<'_>, slot: &Ref, op: VbdOp, disk: Option<&Ref>) -> About {
    let about = About::vbd(view, slot, op);
    match disk {
        Some(disk) => {
            let of_disk = About::vdi(view, disk, VdiOp::Update);
            About { vdi: of_disk.vdi, sr: of_disk.sr, ..about }
        }
        None => about,
    }
}

fn check(view: &View<'_>, slot: &Ref, op: VbdOp, disk: Option<&Ref>) -> Result<(), Refusal> {
    let machine = reference(view, slot, vbd::Field::VM).map_err(gone)?;
    let vm = facts::vm(view, &machine).map_err(gone)?;
    let vbd = match disk {
        Some(disk) => facts::vbd_with(view, slot, disk),
        None => facts::vbd(view, slot),
    };
    let vbd = vbd.map_err(gone)?;
    model::vbd::check(op, &vbd, &vm, Strictness::Lenient)
}

/// Changes the medium in a drive of a halted VM. Returns false if the VM is not halted.
fn medium_at_rest(
    ctx: &Ctx,
    slot: &Ref,
    op: VbdOp,
    disk: Option<&Ref>,
    about: &About,
) -> Result<bool, ApiError> {
    if !matches!(op, VbdOp::Insert | VbdOp::Eject) {
        return Ok(false);
    }
    ctx.change(|tx| {
        let view = tx.view();
        let machine = reference(&view, slot, vbd::Field::VM)?;
        if machine_config::power(&view, &machine)? != PowerState::Halted {
            return Ok(false);
        }
        check(&view, slot, op, disk).map_err(|why| about.refused(why))?;
        effects::fill(tx, slot, disk)?;
        Ok(true)
    })
}

fn work(
    view: &View<'_>,
    slot: &Ref,
    op: VbdOp,
    disk: Option<Ref>,
) -> Result<VmOpRequest, ApiError> {
    let machine = reference(view, slot, vbd::Field::VM)?;
    let vbd = model::id::VbdId(uuid(view, slot, vbd::Field::uuid)?);
    let plan = match op {
        VbdOp::Plug => MachineOp::VbdPlug(vbd),
        VbdOp::Insert => MachineOp::Insert(vbd),
        VbdOp::Eject => MachineOp::Eject(vbd),
        _ => MachineOp::VbdUnplug { vbd, force: op == VbdOp::UnplugForce },
    };
    let of = slot.clone();
    let gate: Precheck = Arc::new(move |tx| {
        check(&tx.view(), &of, op, disk.as_ref())?;
        match &disk {
            // The plan inserts the VDI that the VBD names.
            Some(_) => effects::fill(tx, &of, disk.as_ref()).map_err(gone),
            None => Ok(()),
        }
    });
    let field = vbd::Field::current_operations.into();
    let marks = vec![CurrentOp { of: slot.clone(), field, op: op.name() }];
    Ok(VmOpRequest {
        vm: id_of(view, &machine)?,
        op: plan,
        marks,
        slow_precheck: no_slow_precheck(),
        gate,
        pending_op_intent: None,
    })
}

/// Empties the VBD after a failed insert.
fn not_inserted(ctx: &Ctx, slot: &Ref) {
    let noted = ctx.app.db.write_observed(|tx| {
        if flag(&tx.view(), slot, vbd::Field::currently_attached)? {
            return Ok(());
        }
        effects::fill(tx, slot, None)
    });
    // A destroyed drive has no medium.
    drop(noted);
}

fn assert_attachable(ctx: &Ctx, args: &Args) -> CallResult {
    let slot = args.object();
    ctx.read(|view| {
        let checked = check(view, &slot, VbdOp::Attach, None);
        checked.map_err(|why| About::vbd(view, &slot, VbdOp::Attach).refused(why))
    })?;
    Ok(nothing())
}
