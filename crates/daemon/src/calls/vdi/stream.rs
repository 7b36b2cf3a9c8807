//! Content of VDIs as streams, for exports and imports over HTTP.

use model::id::{SrId, VdiId};
use model::image::ImageFormat;
use model::refusal::Refusal;
use model::sr::SrOp;
use model::vdi::VdiOp;
use toolstack::machines::{Imported, VolumeImport};
use toolstack::ringway_io::ExportStream;
use xenapi::table::vdi;
use xenapi::{ApiError, NULL_REF, codes};

use super::create::resized;
use super::snapshot::{new_id, placed, refused};
use super::{Disk, begin, check, check_sr, disk_of, mark_sr, taken};
use crate::db::Ref;
use crate::dispatch::Ctx;
use crate::errors::About;
use crate::facts;
use crate::http::{BodyCut, ImportBody};
use crate::ops::current_ops::{CurrentOp, CurrentOps};
use crate::ops::run::{OpCaller, gone};
use crate::records::fields::bytes;
use crate::tasks::ProgressMeter;

/// Largest disk of a VHD in bytes: 2,040 GiB.
const MAX_VHD_BYTES: u64 = 0xff00_0000 * 512;
/// Part of an import at which its progress stays until it is complete.
const RECEIVED: f64 = 0.99;

/// Export under way. No guest writes the VDI until it is dropped.
pub(crate) struct Export {
    /// The image.
    pub(crate) stream: ExportStream,
    _under_way: Vec<CurrentOps>,
}

/// Begins to read a VDI as an image. With `base`, it has what differs from that VDI.
///
/// # Errors
/// Those of the SRs, and of operations under way. `VDI_IN_USE` if a VM may write a VDI.
pub(crate) async fn begin_export(
    ctx: &Ctx,
    disk: &Ref,
    base: Option<&Ref>,
    format: ImageFormat,
) -> Result<Export, ApiError> {
    let disk = ctx.read(|view| disk_of(view, disk))?;
    let base = base.map(|base| ctx.read(|view| disk_of(view, base))).transpose()?;
    if base.is_some() && format != ImageFormat::Vhd {
        let why = "only a VHD can have the difference to another disk: export with format=vhd";
        return Err(codes::value_not_supported("format", format.name(), why));
    }
    let size = ctx.read(|view| bytes(view, &disk.disk, vdi::Field::virtual_size))?;
    if format == ImageFormat::Vhd && size > MAX_VHD_BYTES {
        return Err(codes::vdi_too_large(disk.disk.as_str(), MAX_VHD_BYTES.to_string()));
    }
    let mut under_way = vec![begin(ctx, &disk, VdiOp::Copy, None).await?];
    if let Some(base) = &base {
        under_way.push(begin(ctx, base, VdiOp::Copy, None).await?);
    }
    let (_, (sr, kind)) = ctx.read(|view| placed(ctx, view, &disk.place))?;
    let base: Option<((SrId, String), VdiId)> = match &base {
        Some(base) => Some((ctx.read(|view| placed(ctx, view, &base.place))?.1, base.id)),
        None => None,
    };
    let base = base.as_ref().map(|((sr, kind), base)| ((*sr, &**kind), *base));
    let machines = &ctx.app.machines;
    let opened = machines.export_volume((sr, &kind), disk.id, base, format);
    let cancel = OpCaller::of(ctx).cancel;
    let opened = tokio::select! {
        () = cancel.cancelled() => return Err(codes::task_cancelled(NULL_REF)),
        opened = opened => opened,
    };
    let stream = opened.map_err(|error| refused(ctx, Some(&&disk), VdiOp::Copy, error))?;
    Ok(Export { stream, _under_way: under_way })
}

/// Replaces the content of a VDI by the image in a body. A differencing VHD changes a part of it.
/// Without success the VDI has its former content.
///
/// # Errors
/// Those of the SR, `VDI_IN_USE`, `VDI_READONLY`, `TASK_CANCELLED`, `IMPORT_ERROR` for an image that
/// does not fit, and `IMPORT_ERROR_PREMATURE_EOF` if the client has gone.
pub(crate) async fn import(
    ctx: &Ctx,
    disk: &Ref,
    format: ImageFormat,
    body: &mut ImportBody,
) -> Result<(), ApiError> {
    let disk = ctx.read(|view| disk_of(view, disk))?;
    let size = ctx.read(|view| bytes(view, &disk.disk, vdi::Field::virtual_size))?;
    let length = body.length().filter(|_| !body.has_open_end());
    if let Some(length) = length.filter(|length| format == ImageFormat::Raw && *length != size) {
        let why = format!(
            "the image has {length} bytes, and the disk {size}: make a disk of the image's size"
        );
        return Err(codes::import_error(why));
    }
    let under_way = begin_import(ctx, &disk)?;
    let lock = taken(ctx, &disk, VdiOp::Update).await?;
    let (_, (sr, kind)) = ctx.read(|view| placed(ctx, view, &disk.place))?;
    let failed = |error| refused(ctx, Some(&&disk), VdiOp::Update, error);
    let end = (body.has_open_end(), length);
    let begun = ctx.app.machines.import_volume((sr, &kind), disk.id, format, end).await;
    let mut volume_import = begun.map_err(failed)?;
    let expected = length.unwrap_or(size).max(1);
    let sent = receive(ctx, body, &mut volume_import, expected).await;
    let cancel = OpCaller::of(ctx).cancel;
    let made = match sent {
        Err(error) => Err(error),
        Ok(()) => tokio::select! {
            () = cancel.cancelled() => Err(codes::task_cancelled(NULL_REF)),
            made = volume_import.finish() => made.map_err(failed),
        },
    };
    let made = match made {
        Ok(made) => made,
        Err(error) => {
            volume_import.abandon().await;
            return Err(error);
        }
    };
    if let Some(task) = &ctx.task {
        task.no_cancel();
    }
    match volume_import.settle(made, new_id().0).await.map_err(failed)? {
        Imported::Volume(volume) => {
            // The content is there, even if a record cannot be stored.
            ctx.app.db.write_observed(|tx| resized(tx, &disk, &volume))?;
        }
        Imported::Refused(why) => return Err(codes::import_error(why)),
        Imported::Cancelled => return Err(codes::task_cancelled(NULL_REF)),
    }
    drop((lock, under_way));
    Ok(())
}

/// Replaces the content of `into` by that of another VDI. With `base`, only what differs from that VDI
/// is copied, and the rest stays. Without success `into` has its former content.
///
/// # Errors
/// Those of the SRs, `VDI_IN_USE`, `VDI_READONLY`, `TASK_CANCELLED`, and `IMPORT_ERROR` if `into` is
/// too small.
pub(super) async fn copy_into(
    ctx: &Ctx,
    disk: &Ref,
    base: Option<&Ref>,
    into: &Ref,
) -> Result<(), ApiError> {
    let disk = ctx.read(|view| disk_of(view, disk))?;
    let base = base.map(|base| ctx.read(|view| disk_of(view, base))).transpose()?;
    let into = ctx.read(|view| disk_of(view, into))?;
    let mut under_way = vec![begin(ctx, &disk, VdiOp::Copy, None).await?];
    if let Some(base) = base.as_ref().filter(|base| base.id != disk.id) {
        under_way.push(begin(ctx, base, VdiOp::Copy, None).await?);
    }
    under_way.push(begin_import(ctx, &into)?);
    let lock = taken(ctx, &into, VdiOp::Update).await?;
    let place =
        |disk: &Disk| ctx.read(|view| placed(ctx, view, &disk.place)).map(|placed| placed.1);
    let ((sr, kind), (to, to_kind)) = (place(&disk)?, place(&into)?);
    let base_place = base.as_ref().map(place).transpose()?;
    let base = base.as_ref().zip(base_place.as_ref());
    let base = base.map(|(base, (sr, kind))| ((*sr, &**kind), base.id));
    let progress = |part: f64| ctx.progress(part.min(RECEIVED));
    let machines = &ctx.app.machines;
    let (source, target) = (((sr, &*kind), disk.id), ((to, &*to_kind), into.id));
    let cancel = OpCaller::of(ctx).cancel;
    let control: (_, &(dyn Fn(f64) + Send + Sync)) = (&cancel, &progress);
    let copied = machines.copy_into_volume(source, base, target, new_id().0, control).await;
    match copied.map_err(|error| refused(ctx, Some(&&into), VdiOp::Update, error))? {
        Imported::Volume(volume) => {
            // The content is there, even if a record cannot be stored.
            ctx.app.db.write_observed(|tx| resized(tx, &into, &volume))?;
        }
        Imported::Refused(why) => return Err(codes::import_error(why)),
        Imported::Cancelled => return Err(codes::task_cancelled(NULL_REF)),
    }
    drop((lock, under_way));
    Ok(())
}

/// Marks the import as under way. Waits for no other operation: the client is sending already.
fn begin_import(ctx: &Ctx, disk: &Disk) -> Result<CurrentOps, ApiError> {
    let field = vdi::Field::current_operations.into();
    let mark = CurrentOp { of: disk.disk.clone(), field, op: VdiOp::Update.name() };
    let marks = [mark, mark_sr(&disk.place, SrOp::VdiResize)];
    let begun = CurrentOps::begin(&ctx.app.db, &OpCaller::of(ctx).key, &marks, |tx| {
        let view = tx.view();
        check(&view, &disk.disk, VdiOp::Update)?;
        if facts::vdi(&view, &disk.disk).map_err(gone)?.read_only {
            return Err(Refusal::VdiReadOnly);
        }
        check_sr(&view, &disk.place, SrOp::VdiResize)
    });
    let about = ctx.read(|view| About::vdi(view, &disk.disk, VdiOp::Update));
    begun.map_err(|why| crate::errors::refused(&ctx.app.db, why, &about))
}

/// Sends a body of about `expected` bytes to an import, up to its end, or until the import needs no
/// more.
async fn receive(
    ctx: &Ctx,
    body: &mut ImportBody,
    volume_import: &mut VolumeImport<'_>,
    expected: u64,
) -> Result<(), ApiError> {
    let cancel = OpCaller::of(ctx).cancel;
    let (mut received, mut meter) = (0_u64, ProgressMeter::new(ctx));
    let all = async {
        loop {
            let next = tokio::select! {
                biased;
                () = volume_import.ended() => return Ok(()),
                next = body.next() => next,
            };
            match next {
                Ok(None) => return Ok(()),
                Ok(Some(bytes)) => {
                    received = received.saturating_add(bytes.len() as u64);
                    if !volume_import.write(&bytes).await {
                        return Ok(());
                    }
                    meter.report((received as f64 / expected as f64).min(RECEIVED));
                }
                Err(BodyCut::Lost) => return Err(codes::import_cut()),
                Err(BodyCut::Stalled(after)) => {
                    let why = format!("nothing arrived for {} s", after.as_secs());
                    return Err(codes::import_error(why));
                }
            }
        }
    };
    tokio::select! {
        () = cancel.cancelled() => Err(codes::task_cancelled(NULL_REF)),
        received = all => received,
    }
}
