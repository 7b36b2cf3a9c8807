//! Messages of class `VDI`.

mod create;
mod on_boot;
mod resize;
mod snapshot;
mod stream;

use model::refusal::Refusal;
use model::sr::SrOp;
use model::vdi::VdiOp;
use toolstack::machines::VolumeLock;
use xenapi::table::{sr, vdi};
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, View};
use crate::dispatch::generic::{self, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler, Hook, text};
use crate::errors::{About, refused};
use crate::facts;
use crate::ops::current_ops::{CurrentOp, CurrentOps};
use crate::ops::run::{OpCaller, at_once, cancellable, gated, gone};
use crate::records::fields::{reference, uuid};
use crate::storage::names;

pub(super) use create::{create_disk, destroy_disk};
pub(super) use snapshot::{clone_disk, copy_disk, snapshot_disks};
pub(crate) use stream::{Export, begin_export, import};

pub(super) const CALLS: super::Calls = &[
    ("VDI.create", Handler::Long(|ctx, args| Box::pin(create::create(ctx, args)))),
    ("VDI.destroy", gated!(may_begin, create::destroy, VdiOp::Destroy)),
    ("VDI.forget", gated!(may_begin, create::forget, VdiOp::Forget)),
    ("VDI.introduce", Handler::Long(|ctx, args| Box::pin(create::introduce(ctx, args)))),
    ("VDI.update", gated!(may_begin, create::update, VdiOp::Update)),
    ("VDI.resize", Handler::Gated(resize::may_begin, |ctx, args| Box::pin(resize::run(ctx, args)))),
    ("VDI.resize_online", gated!(may_begin, resize::online, VdiOp::ResizeOnline)),
    ("VDI.clone", gated!(may_begin, snapshot::clone, VdiOp::Clone)),
    ("VDI.copy", cancellable!(may_begin, snapshot::copy, VdiOp::Copy)),
    ("VDI.snapshot", gated!(may_begin, snapshot::snapshot, VdiOp::Snapshot)),
    ("VDI.enable_cbt", gated!(may_begin, not_here, VdiOp::EnableCbt)),
    ("VDI.disable_cbt", gated!(may_begin, not_here, VdiOp::DisableCbt)),
    ("VDI.data_destroy", gated!(may_begin, not_here, VdiOp::DataDestroy)),
    ("VDI.get_nbd_info", Handler::Short(|_, _| Ok(Value::Set(Vec::new())))),
    ("VDI.set_name_label", Handler::Short(|ctx, args| set(ctx, args, vdi::Field::name_label))),
    (
        "VDI.set_name_description",
        Handler::Short(|ctx, args| set(ctx, args, vdi::Field::name_description)),
    ),
    ("VDI.set_read_only", Handler::Short(|ctx, args| set(ctx, args, vdi::Field::read_only))),
    ("VDI.set_sharable", Handler::Short(|ctx, args| set(ctx, args, vdi::Field::sharable))),
    (
        "VDI.set_allow_caching",
        Handler::Short(|ctx, args| set(ctx, args, vdi::Field::allow_caching)),
    ),
    ("VDI.set_on_boot", gated!(may_begin, on_boot::set, VdiOp::SetOnBoot)),
];

pub(super) const HOOKS: &[Hook] = &[
    Hook { field: "VDI.read_only", check: at_rest, follow: None },
    Hook { field: "VDI.sharable", check: at_rest, follow: None },
    Hook { field: "VDI.name_label", check: anytime, follow: Some(names::store) },
    Hook { field: "VDI.name_description", check: anytime, follow: Some(names::store) },
];

fn set(ctx: &Ctx, args: &Args, field: vdi::Field) -> CallResult {
    generic::set(ctx, args, field)
}

fn anytime(_: &Ctx, _: &mut crate::db::Tx<'_>, _: &Ref) -> Result<(), ApiError> {
    Ok(())
}

/// Checks that no VM uses the VDI, because these settings apply from the attach on, and that no import
/// or copy gives it new content.
fn at_rest(_: &Ctx, tx: &mut crate::db::Tx<'_>, disk: &Ref) -> Result<(), ApiError> {
    let facts = facts::vdi(&tx.view(), disk)?;
    let is_written = facts.current.contains(&VdiOp::Update);
    if is_written || facts.users.iter().any(|user| user.attached) {
        return Err(codes::vdi_in_use(disk.as_str(), "update"));
    }
    Ok(())
}

/// Checks whether the operation may begin, before a task exists.
fn may_begin(ctx: &Ctx, args: &Args, op: VdiOp) -> Result<(), ApiError> {
    let disk = args.object();
    let (checked, about) = ctx.read(|view| (check(view, &disk, op), About::vdi(view, &disk, op)));
    at_once(checked).map_err(|why| refused(&ctx.app.db, why, &about))
}

fn check(view: &View<'_>, disk: &Ref, op: VdiOp) -> Result<(), Refusal> {
    model::vdi::check(op, &facts::vdi(view, disk).map_err(gone)?)
}

/// Refuses an operation that the precheck allows but that is not implemented.
async fn not_here(ctx: Ctx, args: Args, op: VdiOp) -> CallResult {
    let about = ctx.read(|view| About::vdi(view, &args.object(), op));
    Err(about.refused(Refusal::NotImplemented))
}

/// VDI with its SR and its volume ID.
struct Disk {
    disk: Ref,
    id: model::id::VdiId,
    place: Ref,
}

fn disk_of(view: &View<'_>, disk: &Ref) -> Result<Disk, ApiError> {
    let id = model::id::VdiId(uuid(view, disk, vdi::Field::uuid)?);
    Ok(Disk { disk: disk.clone(), id, place: reference(view, disk, vdi::Field::SR)? })
}

/// Waits until an operation of a VDI may begin, together with one of its SR if `of_sr` is given.
async fn begin(
    ctx: &Ctx,
    disk: &Disk,
    op: VdiOp,
    of_sr: Option<SrOp>,
) -> Result<CurrentOps, ApiError> {
    let field = vdi::Field::current_operations.into();
    let mut marks = vec![CurrentOp { of: disk.disk.clone(), field, op: op.name() }];
    marks.extend(of_sr.map(|op| mark_sr(&disk.place, op)));
    let gate = |tx: &mut crate::db::Tx<'_>| {
        let view = tx.view();
        check(&view, &disk.disk, op)?;
        of_sr.map_or(Ok(()), |op| check_sr(&view, &disk.place, op))
    };
    let key = OpCaller::of(ctx).key;
    let begun = CurrentOps::wait(&ctx.app.db, &key, &marks, ctx.app.settings.queue_deadline, gate);
    let about = ctx.read(|view| About::vdi(view, &disk.disk, op));
    begun.await.map_err(|why| refused(&ctx.app.db, why, &about))
}

/// Locks the volume against attaches. Records may show no user while a hung VM uses it.
async fn taken<'a>(ctx: &'a Ctx, disk: &Disk, op: VdiOp) -> Result<VolumeLock<'a>, ApiError> {
    let taken = ctx.app.machines.lock_unused_volume(disk.id).await;
    taken.ok_or_else(|| codes::vdi_in_use(disk.disk.as_str(), op.name()))
}

fn mark_sr(place: &Ref, op: SrOp) -> CurrentOp {
    CurrentOp { of: place.clone(), field: sr::Field::current_operations.into(), op: op.name() }
}

fn check_sr(view: &View<'_>, place: &Ref, op: SrOp) -> Result<(), Refusal> {
    model::sr::check(op, &facts::sr(view, place).map_err(gone)?)
}

/// Returns a text field of a given record.
fn given<'a>(fields: &'a std::collections::BTreeMap<String, Value>, name: &str) -> &'a str {
    fields.get(name).map_or("", text)
}
