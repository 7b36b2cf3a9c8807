//! Messages of class `VIF`.

mod create;
mod mac;
mod settings;

use std::sync::Arc;

use model::id::VifId;
use model::plan::MachineOp;
use model::refusal::Refusal;
use model::vif::VifOp;
use model::vm::Strictness;
use xenapi::ApiError;
use xenapi::table::{network, vif};

use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::errors::{About, failed, refused};
use crate::facts;
use crate::ops::current_ops::CurrentOp;
use crate::ops::run::{
    OpCaller, Precheck, VmOpRequest, at_once, cancellable, gone, id_of, no_slow_precheck, run_vm_op,
};
use crate::records::fields::{flag, reference, uuid};

pub(super) use crate::ops::vif_settings::HOOKS;
pub(crate) use crate::ops::vif_settings::reapply;
pub(super) use create::{copied, numbers};
pub(super) use settings::CALLS as SETTINGS;

pub(super) const CALLS: super::Calls = &[
    ("VIF.create", Handler::Short(create::create)),
    ("VIF.destroy", Handler::Short(create::destroy)),
    ("VIF.plug", cancellable!(may_begin, device, VifOp::Plug)),
    ("VIF.unplug", cancellable!(may_begin, device, VifOp::Unplug)),
    ("VIF.unplug_force", cancellable!(may_begin, device, VifOp::Unplug)),
    ("VIF.move", Handler::Long(|ctx, args| Box::pin(moved(ctx, args)))),
];

/// Checks whether the operation may begin, before a task exists.
fn may_begin(ctx: &Ctx, args: &Args, op: VifOp) -> Result<(), ApiError> {
    let device = args.object();
    let (checked, about) =
        ctx.read(|view| (check(view, &device, op), About::vif(view, &device, op)));
    at_once(checked).map_err(|why| refused(&ctx.app.db, why, &about))
}

fn check(view: &View<'_>, device: &Ref, op: VifOp) -> Result<(), Refusal> {
    let machine = reference(view, device, vif::Field::VM).map_err(gone)?;
    let vm = facts::vm(view, &machine).map_err(gone)?;
    model::vif::check(op, &facts::vif(view, device).map_err(gone)?, &vm, Strictness::Lenient)
}

async fn device(ctx: Ctx, args: Args, op: VifOp) -> CallResult {
    plugged(&ctx, &args.object(), op).await?;
    Ok(nothing())
}

async fn plugged(ctx: &Ctx, device: &Ref, op: VifOp) -> Result<(), ApiError> {
    let vm_op_request = ctx.read(|view| work(view, device, op))?;
    let about = ctx.read(|view| About::vif(view, device, op));
    let ended = run_vm_op(&ctx.app, &OpCaller::of(ctx), &vm_op_request).await;
    ended.map_err(|error| failed(&ctx.app.db, error, &about))
}

fn work(view: &View<'_>, device: &Ref, op: VifOp) -> Result<VmOpRequest, ApiError> {
    let machine = reference(view, device, vif::Field::VM)?;
    let vif = VifId(uuid(view, device, vif::Field::uuid)?);
    let plan = if op == VifOp::Plug { MachineOp::VifPlug(vif) } else { MachineOp::VifUnplug(vif) };
    let of = device.clone();
    let gate: Precheck = Arc::new(move |tx| check(&tx.view(), &of, op));
    let field = vif::Field::current_operations.into();
    let marks = vec![CurrentOp { of: device.clone(), field, op: op.name() }];
    Ok(VmOpRequest {
        vm: id_of(view, &machine)?,
        op: plan,
        marks,
        slow_precheck: no_slow_precheck(),
        gate,
        pending_op_intent: None,
    })
}

/// Moves a VIF to another network. A running guest sees an unplug and a plug.
async fn moved(ctx: Ctx, args: Args) -> CallResult {
    let device = args.object();
    let attached = ctx.read(|view| flag(view, &device, vif::Field::currently_attached))?;
    if attached {
        plugged(&ctx, &device, VifOp::Unplug).await?;
    }
    let former = ctx.read(|view| reference(view, &device, vif::Field::network))?;
    let moved = ctx.change(|tx| put_on(tx, &device, &args.reference("network")));
    if !attached {
        return moved.map(|()| nothing());
    }
    let moved = match moved {
        Ok(()) => plugged(&ctx, &device, VifOp::Plug).await,
        Err(error) => Err(error),
    };
    let Err(error) = moved else { return Ok(nothing()) };
    // The guest gets its interface back where it was.
    let back = match ctx.change(|tx| put_on(tx, &device, &former)) {
        Ok(()) => plugged(&ctx, &device, VifOp::Plug).await,
        Err(error) => Err(error),
    };
    if let Err(back) = back {
        tracing::warn!(vif = device.as_str(), error = %back, "cannot plug the VIF where it was");
    }
    Err(error)
}

/// Puts an unplugged VIF on a network.
fn put_on(tx: &mut Tx<'_>, device: &Ref, net: &Ref) -> Result<(), ApiError> {
    let mtu = tx.view().get(net, network::Field::MTU)?.clone();
    tx.set(device, vif::Field::network, net.value())?;
    tx.set(device, vif::Field::MTU, mtu)
}
