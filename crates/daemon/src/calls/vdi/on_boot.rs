//! VDIs that go back to a content when their VM boots.

use model::sr::SrOp;
use model::vdi::VdiOp;
use xenapi::table::vdi;
use xenapi::{Value, codes};

use super::snapshot::{new_id, placed, refused};
use super::{begin, disk_of, nothing, taken};
use crate::dispatch::{Args, CallResult, Ctx};
use crate::facts::{self, RESET};

/// Sets `on_boot`. `reset` makes the present content the one to which the VDI goes back.
pub(super) async fn set(ctx: Ctx, args: Args, op: VdiOp) -> CallResult {
    let resets = match args.text("value") {
        RESET => true,
        "persist" => false,
        other => return Err(codes::invalid_value("value", other)),
    };
    let disk = ctx.read(|view| disk_of(view, &args.object()))?;
    let under_way = begin(&ctx, &disk, op, Some(SrOp::VdiSetOnBoot)).await?;
    let lock = taken(&ctx, &disk, op).await?;
    if ctx.read(|view| facts::resets(view, &disk.disk)) != resets {
        let (_, (sr, kind)) = ctx.read(|view| placed(&ctx, view, &disk.place))?;
        let (machines, of) = (&ctx.app.machines, (sr, &*kind));
        let changed = match resets {
            true => machines.set_reset_point(of, &lock, (new_id().0, new_id().0)).await,
            false => machines.clear_reset_point(of, &lock).await,
        };
        changed.map_err(|error| refused(&ctx, Some(&&disk), op, error))?;
        ctx.change(|tx| tx.set(&disk.disk, vdi::Field::on_boot, Value::text(args.text("value"))))?;
    }
    drop((lock, under_way));
    Ok(nothing())
}
