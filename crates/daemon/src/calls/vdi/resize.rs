//! Resizing of VDIs, also while VMs use them.

use std::time::Duration;

use model::id::{SrId, VbdId, VmId};
use model::plan::StepAction;
use model::sr::SrOp;
use model::vdi::VdiOp;
use tokio::time::timeout;
use toolstack::machines::{OpError, StepError, StepTimeout};
use xenapi::table::{sr, vbd, vdi};
use xenapi::{ApiError, codes};

use super::create::{resized, sized};
use super::{Disk, begin, disk_of, nothing, taken};
use crate::db::{Ref, View};
use crate::dispatch::{Args, CallResult, Ctx};
use crate::errors::{About, failed};
use crate::facts;
use crate::ops::run::id_of;
use crate::records::fields::{bytes, flag, reference, references, uuid};

/// Time limit for the datapath and the guest to see the new size.
const RESIZE_DEADLINE: Duration = Duration::from_secs(30);

pub(super) fn may_begin(ctx: &Ctx, args: &Args) -> Result<(), ApiError> {
    let op = ctx.read(|view| op_of(view, &args.object()))?;
    super::may_begin(ctx, args, op)
}

pub(super) async fn run(ctx: Ctx, args: Args) -> CallResult {
    let op = ctx.read(|view| op_of(view, &args.object()))?;
    grow(&ctx, &args, op).await
}

pub(super) async fn online(ctx: Ctx, args: Args, op: VdiOp) -> CallResult {
    grow(&ctx, &args, op).await
}

/// Returns the operation: online if a VM uses the VDI.
fn op_of(view: &View<'_>, disk: &Ref) -> Result<VdiOp, ApiError> {
    let used = facts::vdi(view, disk)?.users.iter().any(|user| user.attached);
    Ok(if used { VdiOp::ResizeOnline } else { VdiOp::Resize })
}

async fn grow(ctx: &Ctx, args: &Args, op: VdiOp) -> CallResult {
    let wanted = sized(args.int("size"))?;
    let disk = ctx.read(|view| disk_of(view, &args.object()))?;
    let (_, (sr, kind)) = ctx.read(|view| super::snapshot::placed(ctx, view, &disk.place))?;
    let under_way = begin(ctx, &disk, op, Some(SrOp::VdiResize)).await?;
    let lock = match op {
        VdiOp::Resize => taken(ctx, &disk, op).await?,
        _ => ctx.app.machines.wait_for_volume(disk.id).await,
    };
    let now = ctx.read(|view| bytes(view, &disk.disk, vdi::Field::virtual_size))?;
    if wanted < now {
        let why = format!("a disk of {now} bytes is not made smaller: its end would be lost");
        return Err(codes::value_not_supported("size", wanted.to_string(), why));
    }
    let grown = ctx.app.machines.resize_volume((sr, &kind), &lock, wanted).await;
    let volume = grown.map_err(|error| super::snapshot::refused(ctx, Some(&&disk), op, error))?;
    drop(lock);
    // The VDI is larger now, even if a guest cannot be notified.
    ctx.app.db.write_observed(|tx| resized(tx, &disk, &volume))?;
    let users = ctx.read(|view| users(view, &disk))?;
    for user in users {
        if let Err(error) = resize_device(ctx, &user).await {
            // An error does not matter if the VBD was unplugged meanwhile.
            if ctx.read(|view| flag(view, &user.slot, vbd::Field::currently_attached)) == Ok(true) {
                let about = ctx.read(|view| About::vdi(view, &disk.disk, op));
                return Err(failed(&ctx.app.db, error, &about));
            }
        }
    }
    drop(under_way);
    Ok(nothing())
}

/// Plugged VBD of the VDI.
struct User {
    slot: Ref,
    vbd: VbdId,
    vm: VmId,
    sr: SrId,
}

fn users(view: &View<'_>, disk: &Disk) -> Result<Vec<User>, ApiError> {
    let mut users = Vec::new();
    for slot in references(view, &disk.disk, vdi::Field::VBDs)? {
        if flag(view, &slot, vbd::Field::currently_attached)? {
            users.push(User {
                vbd: VbdId(uuid(view, &slot, vbd::Field::uuid)?),
                vm: id_of(view, &reference(view, &slot, vbd::Field::VM)?)?,
                sr: SrId(uuid(view, &disk.place, sr::Field::uuid)?),
                slot,
            });
        }
    }
    Ok(users)
}

/// Resizes the served disk, then the guest's device.
async fn resize_device(ctx: &Ctx, user: &User) -> Result<(), OpError> {
    let failed = |error| OpError::Failed { verb: StepAction::VbdPlug(user.vbd), error };
    let late = || failed(StepTimeout { after: RESIZE_DEADLINE }.into());
    timeout(RESIZE_DEADLINE, resize_both(ctx, user)).await.map_err(|_| late())?.map_err(failed)
}

async fn resize_both(ctx: &Ctx, user: &User) -> Result<(), StepError> {
    let drivers = &ctx.app.drivers;
    let datapath = drivers.io.of(user.sr).await?;
    let bytes = datapath.resize(&user.vbd.to_string(), None).await?;
    Ok(drivers.hv.resized(user.vm, user.vbd, bytes).await?)
}
