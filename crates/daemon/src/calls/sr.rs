//! Messages of class `SR`.

mod create;
pub(super) mod location;
mod probe;

use error_causes::error_chain;
use model::id::VdiId;
use model::refusal::Refusal;
use model::sr::{SrFacts, SrOp};
use xenapi::table::{sr, vdi};
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::{self, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::errors::{About, refused};
use crate::facts;
use crate::ops::current_ops::{CurrentOp, CurrentOps};
use crate::ops::run::{OpCaller, at_once, gated, gone};
use crate::records::fields::{references, uuid};
use crate::storage::{self, SrHandle};

pub(super) const CALLS: super::Calls = &[
    ("SR.create", Handler::Long(|ctx, args| Box::pin(create::create(ctx, args)))),
    ("SR.probe", Handler::Long(|ctx, args| Box::pin(probe::probe(ctx, args)))),
    ("SR.introduce", Handler::Short(create::introduce)),
    ("SR.destroy", gated!(may_begin, end, SrOp::Destroy)),
    ("SR.forget", gated!(may_begin, end, SrOp::Forget)),
    ("SR.scan", gated!(may_begin, scanned, SrOp::Scan)),
    ("SR.update", gated!(may_begin, scanned, SrOp::Update)),
    ("SR.get_supported_types", Handler::Short(supported_types)),
    ("SR.set_name_label", Handler::Short(|ctx, args| set(ctx, args, sr::Field::name_label))),
    (
        "SR.set_name_description",
        Handler::Short(|ctx, args| set(ctx, args, sr::Field::name_description)),
    ),
    ("SR.set_shared", Handler::Short(|ctx, args| set(ctx, args, sr::Field::shared))),
    ("SR.set_physical_size", Handler::Short(|ctx, args| set(ctx, args, sr::Field::physical_size))),
];

fn set(ctx: &Ctx, args: &Args, field: sr::Field) -> CallResult {
    generic::set(ctx, args, field)
}

fn supported_types(ctx: &Ctx, _: &Args) -> CallResult {
    Ok(Value::Set(ctx.app.storage.kinds().map(Value::text).collect()))
}

/// Checks whether the operation may begin, before a task exists.
pub(super) fn may_begin(ctx: &Ctx, args: &Args, op: SrOp) -> Result<(), ApiError> {
    let place = args.object();
    let (checked, about) = ctx.read(|view| (check(view, &place, op), about(view, &place, op)));
    at_once(checked).map_err(|why| refused(&ctx.app.db, why, &about))
}

/// Checks whether an operation of an SR may begin.
pub(super) fn check(view: &View<'_>, place: &Ref, op: SrOp) -> Result<(), Refusal> {
    let in_use = ends(op) && facts::used_disk(view, place).is_some();
    model::sr::check(op, &SrFacts { in_use, ..facts::sr(view, place).map_err(gone)? })?;
    match op {
        SrOp::Unplug => facts::cached_image(view, place).map_or(Ok(()), |user| {
            let why = "has its cache in this one (cache-sr); unplug the PBD of that one first";
            Err(Refusal::NotAllowed(format!("the storage repository {user} {why}")))
        }),
        _ => Ok(()),
    }
}

/// Returns whether the operation makes the SR's VDIs unavailable.
fn ends(op: SrOp) -> bool {
    matches!(op, SrOp::Unplug | SrOp::Destroy | SrOp::Forget)
}

/// Returns the objects of an SR operation, with the VDI that may be in its way.
pub(super) fn about(view: &View<'_>, place: &Ref, op: SrOp) -> About {
    let about = About::sr(place, op);
    let used = if ends(op) { facts::used_disk(view, place) } else { None };
    match used {
        Some(vdi) => About { vdi, ..about },
        None => about,
    }
}

/// Waits until an operation of an SR may begin, and makes the changes in `first` as it begins.
pub(super) async fn begin(
    ctx: &Ctx,
    place: &Ref,
    op: SrOp,
    first: impl Fn(&mut Tx<'_>) -> Result<(), ApiError>,
) -> Result<CurrentOps, ApiError> {
    let field = sr::Field::current_operations.into();
    let marks = [CurrentOp { of: place.clone(), field, op: op.name() }];
    let gate = |tx: &mut Tx<'_>| {
        check(&tx.view(), place, op)?;
        first(tx).map_err(gone)
    };
    let (key, deadline) = (OpCaller::of(ctx).key, ctx.app.settings.queue_deadline);
    let begun = CurrentOps::wait(&ctx.app.db, &key, &marks, deadline, gate).await;
    begun.map_err(|why| refused(&ctx.app.db, why, &ctx.read(|view| about(view, place, op))))
}

async fn scanned(ctx: Ctx, args: Args, op: SrOp) -> CallResult {
    let storage = ctx.read(|view| ctx.app.storage.of(view, &args.object()))?;
    let under_way = begin(&ctx, &storage.sr, op, |_| Ok(())).await?;
    let scan = storage::scan(&ctx.app, &storage).await?;
    storage.coalesce(&ctx.app);
    drop(under_way);
    match scan.unreadable_error() {
        Some(error) => {
            let text = format!("{}. All other disks are scanned", error_chain(&error));
            Err(codes::sr_backend_failure("CONFIG", "", text))
        }
        None => Ok(nothing()),
    }
}

async fn end(ctx: Ctx, args: Args, op: SrOp) -> CallResult {
    let place = args.object();
    let under_way = begin(&ctx, &place, op, |_| Ok(())).await?;
    let (held, storage, config) = ctx.read(|view| {
        let config = storage::connection(view, &place).map(|(_, config)| config);
        (held(&ctx, view, &place), ctx.app.storage.of(view, &place), config)
    });
    if let Some(held) = held {
        return Err(codes::vdi_in_use(held.as_str(), op.name()));
    }
    // An SR without a driver has nothing to detach.
    if let Ok(storage) = storage {
        let_go(&ctx, &storage).await?;
        if op == SrOp::Destroy {
            storage.destroy(&config?).await?;
        }
    }
    ctx.change(|tx| create::remove(tx, &place))?;
    drop(under_way);
    Ok(nothing())
}

/// Returns a VDI of this SR that a VM still uses. Records may show no user while a hung VM uses it.
pub(super) fn held(ctx: &Ctx, view: &View<'_>, place: &Ref) -> Option<Ref> {
    let disks = references(view, place, sr::Field::VDIs).unwrap_or_default();
    disks.into_iter().find(|disk| {
        let id = uuid(view, disk, vdi::Field::uuid);
        id.is_ok_and(|id| ctx.app.machines.volume_users(VdiId(id)))
    })
}

/// Ends the SR's datapath and detaches the SR. None of its VDIs may be in use.
pub(super) async fn let_go(ctx: &Ctx, storage: &SrHandle) -> Result<(), ApiError> {
    ctx.app.coalescer.stop(storage.id).await;
    // The datapath may hang with its storage. The detach continues.
    if let Err(error) = ctx.app.drivers.io.end(storage.id).await {
        tracing::warn!("cannot end the ringway-io of storage repository {}: {error}", storage.id);
    }
    storage.detach().await
}
