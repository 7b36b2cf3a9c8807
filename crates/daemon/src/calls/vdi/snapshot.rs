//! Snapshots and clones of VDIs.

use model::id::{SrId, Uuid, VdiId};
use model::plan::StepAction;
use model::sr::SrOp;
use model::vdi::VdiOp;
use toolstack::machines::{OpError, SnapshotPlan, StepError};
use xenapi::table::{FieldIx, sr, vdi};
use xenapi::{ApiError, Date, NULL_REF, Value, codes};

use super::create::{record, resized};
use super::{Disk, begin, disk_of};
use crate::db::{Ref, View};
use crate::dispatch::{Args, CallResult, Ctx};
use crate::errors::{About, failed};
use crate::ops::current_ops::CurrentOps;
use crate::ops::run::OpCaller;
use crate::random;
use crate::records::fields::{bytes, text, uuid};
use crate::storage::{self, SrHandle, names};

/// Fields that snapshots and clones inherit.
const INHERITED: [vdi::Field; 10] = [
    vdi::Field::SR,
    vdi::Field::name_label,
    vdi::Field::name_description,
    vdi::Field::r#type,
    vdi::Field::sharable,
    vdi::Field::other_config,
    vdi::Field::xenstore_data,
    vdi::Field::sm_config,
    vdi::Field::tags,
    vdi::Field::allow_caching,
];

pub(super) async fn snapshot(ctx: Ctx, args: Args, _: VdiOp) -> CallResult {
    let mut made = snapshot_disks(&ctx, &[args.object()]).await?;
    made.pop().map(|made| made.value()).ok_or_else(|| codes::internal("no snapshot"))
}

pub(super) async fn clone(ctx: Ctx, args: Args, _: VdiOp) -> CallResult {
    clone_disk(&ctx, &args.object()).await.map(|made| made.value())
}

/// Takes snapshots of VDIs: those of one SR at one instant. Returns them in the order of `disks`.
///
/// # Errors
/// Those of the SRs, and of operations under way. No snapshot exists then.
pub(in crate::calls) async fn snapshot_disks(
    ctx: &Ctx,
    disks: &[Ref],
) -> Result<Vec<Ref>, ApiError> {
    let disks: Vec<Disk> =
        ctx.read(|view| disks.iter().map(|disk| disk_of(view, disk)).collect::<Result<_, _>>())?;
    let mut under_way: Vec<CurrentOps> = Vec::new();
    for disk in &disks {
        under_way.push(begin(ctx, disk, VdiOp::Snapshot, Some(SrOp::VdiSnapshot)).await?);
    }
    let mut places: Vec<&Ref> = disks.iter().map(|disk| &disk.place).collect();
    places.sort();
    places.dedup();
    let mut made: Vec<(VdiId, Ref)> = Vec::new();
    for place in places {
        let of_place: Vec<_> = disks.iter().filter(|disk| disk.place == *place).collect();
        match snapshots_on(ctx, place, &of_place).await {
            Ok(snapshots) => made.extend(snapshots),
            Err(error) => {
                for (_, snapshot) in made {
                    // A snapshot that cannot be destroyed remains in the list of VDIs.
                    let _left = super::destroy_disk(ctx, &snapshot).await;
                }
                return Err(error);
            }
        }
    }
    drop(under_way);
    let of = |disk: &Disk| made.iter().find(|(of, _)| *of == disk.id).map(|(_, made)| made.clone());
    Ok(disks.iter().filter_map(of).collect())
}

/// Takes snapshots of VDIs of one SR. Returns each with the id of its volume.
async fn snapshots_on(
    ctx: &Ctx,
    place: &Ref,
    disks: &[&Disk],
) -> Result<Vec<(VdiId, Ref)>, ApiError> {
    let (storage, (sr, kind)) = ctx.read(|view| placed(ctx, view, place))?;
    let mut plans = Vec::new();
    for disk in disks {
        plans.push(SnapshotPlan { of: disk.id, snapshot: new_id(), layer: new_id().0 });
    }
    let now = ctx.app.clock.date();
    let taken = ctx.app.machines.snapshot_volumes((sr, &kind), &plans, now.0).await;
    let taken = taken.map_err(|error| refused(ctx, disks.first(), VdiOp::Snapshot, error))?;
    let recorded = ctx.change_stored(|tx| {
        let mut made = Vec::new();
        for (disk, (snapshot, present)) in disks.iter().zip(&taken) {
            let mut fields = inherited(&tx.view(), &disk.disk)?;
            fields.extend(of_snapshot(&disk.disk, now));
            made.push((disk.id, record(tx, place, snapshot, fields)?));
            resized(tx, disk, present)?;
        }
        Ok(made)
    });
    let recorded = recorded.await;
    if let Ok(made) = &recorded {
        made.iter().for_each(|(_, snapshot)| names::store(ctx, snapshot));
    } else {
        let snapshots: Vec<_> = taken.iter().map(|(snapshot, _)| snapshot.vdi).collect();
        remove(&storage, &snapshots).await;
    }
    storage.coalesce(&ctx.app);
    recorded
}

/// Creates a clone of a VDI in its SR.
///
/// # Errors
/// Those of the SR, and of operations under way.
pub(in crate::calls) async fn clone_disk(ctx: &Ctx, disk: &Ref) -> Result<Ref, ApiError> {
    let disk = ctx.read(|view| disk_of(view, disk))?;
    let under_way = begin(ctx, &disk, VdiOp::Clone, Some(SrOp::VdiClone)).await?;
    let (storage, (sr, kind)) = ctx.read(|view| placed(ctx, view, &disk.place))?;
    let ids = (disk.id, new_id());
    let layers = [new_id().0, new_id().0];
    let cloned = ctx.app.machines.clone_volume((sr, &kind), ids, layers).await;
    let volume = cloned.map_err(|error| refused(ctx, Some(&&disk), VdiOp::Clone, error))?;
    let recorded = ctx.change_stored(|tx| {
        let fields = inherited(&tx.view(), &disk.disk)?;
        record(tx, &disk.place, &volume, fields)
    });
    let recorded = recorded.await;
    if let Ok(made) = &recorded {
        names::store(ctx, made);
    } else {
        remove(&storage, &[volume.vdi]).await;
    }
    drop(under_way);
    recorded
}

pub(super) async fn copy(ctx: Ctx, args: Args, _: VdiOp) -> CallResult {
    let given = |name| Some(args.reference(name)).filter(|given| !given.is_null());
    let (base, into) = (given("base_vdi"), given("into_vdi"));
    if let Some(into) = into {
        super::stream::copy_into(&ctx, &args.object(), base.as_ref(), &into).await?;
        return Ok(into.value());
    }
    if let Some(base) = base {
        let why = "a new disk gets all of its content: name the disk that has the base as into_vdi";
        return Err(codes::value_not_supported("base_vdi", base.as_str(), why));
    }
    let to = Some(args.reference("sr")).filter(|place| !place.is_null());
    let made = copy_disk(&ctx, &args.object(), to.as_ref(), &|part| ctx.progress(part)).await?;
    Ok(made.value())
}

/// Copies a VDI, with all its bytes, to this SR or to its own.
///
/// # Errors
/// Those of the SRs, of operations under way, and `TASK_CANCELLED`. No copy exists then.
pub(in crate::calls) async fn copy_disk(
    ctx: &Ctx,
    disk: &Ref,
    to: Option<&Ref>,
    progress: &(dyn Fn(f64) + Send + Sync),
) -> Result<Ref, ApiError> {
    let disk = ctx.read(|view| disk_of(view, disk))?;
    let to = to.unwrap_or(&disk.place).clone();
    let under_way = begin(ctx, &disk, VdiOp::Copy, None).await?;
    let target = super::create::begin_sr(ctx, &to, SrOp::VdiCreate).await?;
    let (_, (sr, kind)) = ctx.read(|view| placed(ctx, view, &disk.place))?;
    let (storage, (to_sr, to_kind)) = ctx.read(|view| placed(ctx, view, &to))?;
    let size = ctx.read(|view| bytes(view, &disk.disk, vdi::Field::virtual_size))?;
    let (from, target_volume) = (((sr, &*kind), disk.id), ((to_sr, &*to_kind), new_id()));
    let copied = ctx.app.machines.copy_volume(from, target_volume, size, progress);
    let cancel = OpCaller::of(ctx).cancel;
    let copied = tokio::select! {
        // Dropping the copy ends it.
        () = cancel.cancelled() => return Err(codes::task_cancelled(NULL_REF)),
        copied = copied => copied,
    };
    let volume = copied.map_err(|error| refused(ctx, Some(&&disk), VdiOp::Copy, error))?;
    let recorded = ctx.change_stored(|tx| {
        let mut fields = inherited(&tx.view(), &disk.disk)?;
        fields.retain(|(field, _)| *field != FieldIx::from(vdi::Field::SR));
        // A copy is a raw image.
        if let Some((_, Value::Map(members))) =
            fields.iter_mut().find(|(field, _)| *field == FieldIx::from(vdi::Field::sm_config))
        {
            members.remove(crate::facts::FORMAT);
        }
        fields.push((vdi::Field::SR.into(), to.value()));
        record(tx, &to, &volume, fields)
    });
    let recorded = recorded.await;
    if let Ok(made) = &recorded {
        names::store(ctx, made);
    } else {
        remove(&storage, &[volume.vdi]).await;
    }
    drop((under_way, target));
    recorded
}

/// Returns the SR with its id and type.
pub(super) fn placed(
    ctx: &Ctx,
    view: &View<'_>,
    place: &Ref,
) -> Result<(SrHandle, (SrId, String)), ApiError> {
    let id = SrId(uuid(view, place, sr::Field::uuid)?);
    let kind = text(view, place, sr::Field::r#type)?.to_owned();
    Ok((ctx.app.storage.of(view, place)?, (id, kind)))
}

/// Removes volumes whose records cannot be stored. The next scan finds one that is left.
async fn remove(storage: &SrHandle, volumes: &[VdiId]) {
    for vdi in volumes {
        let _left = storage.destroy_volume(*vdi).await;
    }
}

fn inherited(view: &View<'_>, disk: &Ref) -> Result<Vec<(FieldIx, Value)>, ApiError> {
    let field = |field: vdi::Field| {
        let mut value = view.get(disk, field)?.clone();
        if let (vdi::Field::sm_config, Value::Map(members)) = (field, &mut value) {
            // A merge of images that is under way belongs to the VDI alone.
            members.remove(storage::COALESCE);
        }
        Ok((field.into(), value))
    };
    INHERITED.into_iter().map(field).collect()
}

fn of_snapshot(disk: &Ref, now: Date) -> [(FieldIx, Value); 3] {
    [
        (vdi::Field::is_a_snapshot.into(), Value::Bool(true)),
        (vdi::Field::snapshot_of.into(), disk.value()),
        (vdi::Field::snapshot_time.into(), Value::Date(now)),
    ]
}

pub(super) fn new_id() -> VdiId {
    VdiId(Uuid::from_random(random::bytes()))
}

pub(super) fn refused(ctx: &Ctx, disk: Option<&&Disk>, op: VdiOp, error: StepError) -> ApiError {
    let about = match disk {
        Some(disk) => ctx.read(|view| About::vdi(view, &disk.disk, op)),
        None => About::vm(&Ref::from(NULL_REF), model::vm::VmOp::Snapshot),
    };
    failed(&ctx.app.db, OpError::Failed { verb: StepAction::Record, error }, &about)
}
