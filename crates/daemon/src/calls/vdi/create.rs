//! Creation and destruction of VDIs.

use std::collections::BTreeMap;

use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use model::plan::StepAction;
use model::sr::SrOp;
use model::vdi::VdiOp;
use toolstack::machines::{OpError, StepError};
use toolstack::sr::{SrError, Volume};
use xenapi::table::{FieldIx, vdi};
use xenapi::{ApiError, Value, codes};

use super::snapshot::placed;
use super::{Disk, begin, check_sr, disk_of, given, mark_sr, nothing, taken};
use crate::db::{Ref, Tx};
use crate::dispatch::generic::constructed;
use crate::dispatch::{Args, CallResult, Ctx, text};
use crate::errors::{About, failed, refused, storage_failed};
use crate::facts::FORMAT;
use crate::ops::current_ops::CurrentOps;
use crate::ops::run::OpCaller;
use crate::random;
use crate::records::effects;
use crate::records::fields::{bytes, size};
use crate::storage::{self, SrHandle, names};

/// Largest VDI in bytes, given by the range of file offsets.
const MAX_BYTES: u64 = i64::MAX as u64 & !0xfff;

pub(super) async fn create(ctx: Ctx, args: Args) -> CallResult {
    let wanted = args.map("args");
    let fields = constructed(&vdi::CLASS, wanted)?;
    let place = Ref::from(given(wanted, "SR"));
    let bytes = match wanted.get("virtual_size") {
        Some(Value::Int(bytes)) => sized(*bytes)?,
        _ => return Err(codes::field_type("virtual_size")),
    };
    create_disk(&ctx, &place, bytes, fields).await.map(|made| made.value())
}

/// Checks the size of a VDI, in bytes.
pub(super) fn sized(bytes: i64) -> Result<u64, ApiError> {
    let found = u64::try_from(bytes).ok().filter(|bytes| (1..=MAX_BYTES).contains(bytes));
    found.ok_or_else(|| codes::invalid_value("virtual_size", bytes.to_string()))
}

/// Creates a VDI of zeroes in an SR, with these additional fields.
///
/// # Errors
/// Those of the SR.
pub(in crate::calls) async fn create_disk(
    ctx: &Ctx,
    place: &Ref,
    bytes: u64,
    mut fields: Vec<(FieldIx, Value)>,
) -> Result<Ref, ApiError> {
    let format = image_format(&fields)?;
    let (storage, (sr, kind)) = ctx.read(|view| placed(ctx, view, place))?;
    let under_way = begin_sr(ctx, place, SrOp::VdiCreate).await?;
    let id = VdiId(Uuid::from_random(random::bytes()));
    let volume = match format {
        ImageFormat::Raw => storage.create_volume(id, bytes).await?,
        format => {
            let created = ctx.app.machines.create_volume((sr, &kind), id, bytes, format).await;
            created.map_err(|error| not_created(ctx, place, error))?
        }
    };
    let recorded = ctx.change_stored(|tx| {
        fields.retain(|(field, _)| *field != FieldIx::from(vdi::Field::virtual_size));
        record(tx, place, &volume, fields)
    });
    // A record that cannot be stored is rolled back. The volume would then have no owner.
    match recorded.await {
        Ok(made) => {
            drop(under_way);
            names::store(ctx, &made);
            Ok(made)
        }
        Err(error) => {
            // If the removal fails too, the next scan finds the volume.
            let _ = storage.destroy_volume(id).await;
            Err(error)
        }
    }
}

/// Returns the format of the image of a new VDI.
fn image_format(fields: &[(FieldIx, Value)]) -> Result<ImageFormat, ApiError> {
    let sm_config = fields.iter().find(|(field, _)| *field == vdi::Field::sm_config.into());
    let Some((_, Value::Map(members))) = sm_config else { return Ok(ImageFormat::Raw) };
    let Some(format) = members.get(FORMAT).map(text) else { return Ok(ImageFormat::Raw) };
    format.parse().map_err(|why: String| codes::value_not_supported("sm_config:type", format, &why))
}

fn not_created(ctx: &Ctx, place: &Ref, error: StepError) -> ApiError {
    let error = OpError::Failed { verb: StepAction::Record, error };
    failed(&ctx.app.db, error, &About::sr(place, SrOp::VdiCreate))
}

/// Records a new volume, with these additional fields.
pub(super) fn record(
    tx: &mut Tx<'_>,
    place: &Ref,
    volume: &Volume,
    mut fields: Vec<(FieldIx, Value)>,
) -> Result<Ref, ApiError> {
    let uuid = volume.vdi.to_string();
    fields.extend([
        (vdi::Field::uuid.into(), Value::text(uuid.clone())),
        (vdi::Field::location.into(), Value::text(uuid)),
        (vdi::Field::managed.into(), Value::Bool(true)),
        (vdi::Field::virtual_size.into(), size(volume.virtual_bytes)),
        (vdi::Field::physical_utilisation.into(), size(volume.physical_bytes)),
    ]);
    if volume.read_only {
        fields.retain(|(field, _)| *field != FieldIx::from(vdi::Field::read_only));
        fields.push((vdi::Field::read_only.into(), Value::Bool(true)));
    }
    let made = tx.create(&vdi::CLASS, fields)?;
    storage::grown(tx, place, (0, 0), (volume.virtual_bytes, volume.physical_bytes))?;
    Ok(made)
}

/// Waits until an operation of an SR may begin.
pub(super) async fn begin_sr(ctx: &Ctx, place: &Ref, op: SrOp) -> Result<CurrentOps, ApiError> {
    let key = OpCaller::of(ctx).key;
    let gate = |tx: &mut Tx<'_>| check_sr(&tx.view(), place, op);
    let marks = [mark_sr(place, op)];
    let begun = CurrentOps::wait(&ctx.app.db, &key, &marks, ctx.app.settings.queue_deadline, gate);
    begun.await.map_err(|why| refused(&ctx.app.db, why, &About::sr(place, op)))
}

pub(super) async fn destroy(ctx: Ctx, args: Args, _: VdiOp) -> CallResult {
    destroy_disk(&ctx, &args.object()).await?;
    Ok(nothing())
}

/// Destroys a VDI and its contents.
///
/// # Errors
/// Those of the SR, and `VDI_IN_USE`.
pub(in crate::calls) async fn destroy_disk(ctx: &Ctx, disk: &Ref) -> Result<(), ApiError> {
    let disk = ctx.read(|view| disk_of(view, disk))?;
    let storage = ctx.read(|view| ctx.app.storage.of(view, &disk.place))?;
    let under_way = begin(ctx, &disk, VdiOp::Destroy, Some(SrOp::VdiDestroy)).await?;
    let taken = taken(ctx, &disk, VdiOp::Destroy).await?;
    if let Err(error) = storage.destroy_volume(disk.id).await {
        if matches!(error, SrError::Late { .. } | SrError::Worker(_)) {
            // The removal may still happen, so the VDI is unavailable until a scan finds it.
            ctx.app
                .db
                .write_observed(|tx| tx.set(&disk.disk, vdi::Field::missing, Value::Bool(true)))?;
        }
        return Err(storage_failed(&error, &storage.sr, None));
    }
    // The volume is gone, so this change must not be rolled back.
    ctx.app.db.write_observed(|tx| remove(tx, &disk))?;
    drop((taken, under_way));
    storage.coalesce(&ctx.app);
    Ok(())
}

fn remove(tx: &mut Tx<'_>, disk: &Disk) -> Result<(), ApiError> {
    let view = tx.view();
    let took = (
        bytes(&view, &disk.disk, vdi::Field::virtual_size)?,
        bytes(&view, &disk.disk, vdi::Field::physical_utilisation)?,
    );
    effects::disk_gone(tx, &disk.disk)?;
    storage::grown(tx, &disk.place, took, (0, 0))
}

pub(super) async fn forget(ctx: Ctx, args: Args, op: VdiOp) -> CallResult {
    let disk = ctx.read(|view| disk_of(view, &args.object()))?;
    // A VDI may be forgotten while its SR is detached, so no SR operation begins.
    let under_way = begin(&ctx, &disk, op, None).await?;
    let taken = taken(&ctx, &disk, op).await?;
    ctx.change(|tx| effects::disk_gone(tx, &disk.disk))?;
    drop((taken, under_way));
    Ok(nothing())
}

/// Creates the record of a volume that exists in its SR.
pub(super) async fn introduce(ctx: Ctx, args: Args) -> CallResult {
    let place = args.reference("SR");
    let id: Uuid =
        args.text("uuid").parse().map_err(|_| codes::uuid_invalid("VDI", args.text("uuid")))?;
    let storage = ctx.read(|view| ctx.app.storage.of(view, &place))?;
    let under_way = begin_sr(&ctx, &place, SrOp::VdiIntroduce).await?;
    let volume = volume_of(&storage, VdiId(id), true).await?;
    let volume = volume.ok_or_else(|| codes::vdi_missing(place.as_str(), id.to_string()))?;
    let named = |name: &str| args.value(name).clone();
    let fields: BTreeMap<&str, FieldIx> = BTreeMap::from([
        ("name_label", vdi::Field::name_label.into()),
        ("name_description", vdi::Field::name_description.into()),
        ("SR", vdi::Field::SR.into()),
        ("type", vdi::Field::r#type.into()),
        ("sharable", vdi::Field::sharable.into()),
        ("read_only", vdi::Field::read_only.into()),
        ("other_config", vdi::Field::other_config.into()),
        ("xenstore_data", vdi::Field::xenstore_data.into()),
        ("sm_config", vdi::Field::sm_config.into()),
    ]);
    let fields = fields.into_iter().map(|(name, field)| (field, named(name))).collect();
    let made = ctx.change(|tx| {
        if tx.view().by_uuid(&vdi::CLASS, &id.to_string()).is_ok() {
            return Err(codes::operation_not_allowed("there is a disk with this UUID already"));
        }
        record(tx, &place, &volume, fields)
    })?;
    drop(under_way);
    names::store(&ctx, &made);
    Ok(made.value())
}

/// Returns the volume of a VDI as the SR reports it. `None` if it does not exist.
///
/// # Errors
/// Those of the SR. The record of the volume cannot be read, or the file of a new volume (`is_new`) may
/// be an image of such a volume.
async fn volume_of(
    storage: &SrHandle,
    id: VdiId,
    is_new: bool,
) -> Result<Option<Volume>, ApiError> {
    let failed = |error: SrError| storage_failed(&error, &storage.sr, None);
    let scan = storage.scan().await.map_err(failed)?;
    let of = |volume: &&Volume| volume.vdi == id;
    let doubtful = scan.doubtful.iter().find(of);
    let is_unclear = scan.unreadable_of(id).is_some() || (is_new && doubtful.is_some());
    match scan.unreadable_error().filter(|_| is_unclear) {
        Some(error) => Err(failed(error)),
        None => Ok(scan.volumes.iter().find(of).or(doubtful).cloned()),
    }
}

/// Updates a VDI record to the SR's report.
pub(super) async fn update(ctx: Ctx, args: Args, op: VdiOp) -> CallResult {
    let disk = ctx.read(|view| disk_of(view, &args.object()))?;
    let storage = ctx.read(|view| ctx.app.storage.of(view, &disk.place))?;
    let under_way = begin(&ctx, &disk, op, Some(SrOp::Update)).await?;
    // An error of the SR does not mean that the VDI is missing.
    let volume = volume_of(&storage, disk.id, false).await?;
    ctx.app.db.write_observed(|tx| {
        tx.set(&disk.disk, vdi::Field::missing, Value::Bool(volume.is_none()))?;
        volume.as_ref().map_or(Ok(()), |volume| resized(tx, &disk, volume))
    })?;
    drop(under_way);
    match volume {
        Some(_) => Ok(nothing()),
        None => Err(codes::vdi_missing(disk.place.as_str(), disk.disk.as_str())),
    }
}

/// Records the new size of a VDI.
pub(super) fn resized(tx: &mut Tx<'_>, disk: &Disk, volume: &Volume) -> Result<(), ApiError> {
    let view = tx.view();
    let before = (
        bytes(&view, &disk.disk, vdi::Field::virtual_size)?,
        bytes(&view, &disk.disk, vdi::Field::physical_utilisation)?,
    );
    tx.set(&disk.disk, vdi::Field::virtual_size, size(volume.virtual_bytes))?;
    tx.set(&disk.disk, vdi::Field::physical_utilisation, size(volume.physical_bytes))?;
    storage::grown(tx, &disk.place, before, (volume.virtual_bytes, volume.physical_bytes))
}
