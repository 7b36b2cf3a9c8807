//! Scans of SRs and their records.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use toolstack::machines::PassedOver;
use toolstack::sr::{SnapshotOf, Space, SrError, SrScan, UnreadableFile, Volume};
use xenapi::table::{message, pbd, sr, vdi};
use xenapi::{ApiError, Date, Value};

use super::space::CACHES_KEY;
use super::{SrHandle, foreign, layers, names};
use crate::app::AppState;
use crate::db::{Object, Ref, Tx};
use crate::errors::storage_failed;
use crate::facts::{FORMAT, RESET};
use crate::ops::message::{MessageDraft, write};
use crate::records::fields::{bytes, flag, reference, references, size, text, uuid};

/// Most volumes listed in a message.
pub(super) const NAMED_MAX: usize = 10;

/// Scans an SR and records the result. An SR whose directory has vanished is recorded as detached.
/// Files that cannot be read are reported in a message, and their VDIs stay as they are recorded.
///
/// # Errors
/// Those of the SR.
pub(crate) async fn scan(app: &Arc<AppState>, storage: &SrHandle) -> Result<SrScan, ApiError> {
    let mut passed_over = foreign::adopt(app, storage).await;
    let scanned = storage.scan().await;
    let now = app.clock.date();
    let mut renamed = Vec::new();
    app.db.write_observed(|tx| match &scanned {
        Ok(scan) => {
            renamed = differently_named(tx, &storage.sr, &scan.volumes)?;
            let ignored = found(tx, &storage.sr, scan)?;
            report_duplicates(tx, storage, &ignored.duplicates, now)?;
            report_unreadable(tx, storage, &scan.unreadable, now)?;
            passed_over.extend(ignored.no_raw);
            foreign::report(tx, storage, &passed_over, now)
        }
        Err(SrError::Vanished { .. }) => {
            let (connection, _) = super::connection(&tx.view(), &storage.sr)?;
            tx.set(&connection, pbd::Field::currently_attached, Value::Bool(false))
        }
        Err(_) => Ok(()),
    })?;
    if !renamed.is_empty() {
        let app = Arc::clone(app);
        tokio::spawn(async move {
            for disk in renamed {
                names::store_present(&app, &disk).await;
            }
        });
    }
    let scan = scanned.map_err(|error| storage_failed(&error, &storage.sr, None))?;
    report_left_layers(app, storage).await;
    Ok(scan)
}

/// Reports layers that belong to no VBD in the log. Nothing removes them: the database may be a new one.
async fn report_left_layers(app: &AppState, storage: &SrHandle) {
    let left = layers::left(app, storage).await;
    if !left.is_empty() {
        let named: Vec<_> = left.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        tracing::warn!(
            sr = %storage.id,
            "{} VBDs that do not exist have files of their writes here: {}. Remove the files whose \
             names begin with these UUIDs if nothing needs them",
            left.len(),
            named.join(", ")
        );
    }
}

/// Records the space of an SR and of its known VDIs, which merged images have changed.
pub(super) async fn refresh(app: &AppState, storage: &SrHandle) {
    // The next scan records it otherwise.
    let Ok(scan) = storage.scan().await else { return };
    let recorded = app.db.write_observed(|tx| {
        for volume in scan.volumes.iter().chain(&scan.doubtful) {
            let disk = tx.view().by_uuid(&vdi::CLASS, &volume.vdi.to_string()).cloned();
            let Ok(disk) = disk else { continue };
            if reference(&tx.view(), &disk, vdi::Field::SR)? == storage.sr {
                let bytes = size(volume.physical_bytes);
                tx.set(&disk, vdi::Field::physical_utilisation, bytes)?;
            }
        }
        measured(tx, &storage.sr, scan.space)
    });
    if let Err(error) = recorded {
        tracing::warn!(sr = %storage.id, "its space is not recorded: {error}");
    }
}

/// Returns the VDIs whose recorded names are not those that the SR stores.
fn differently_named(tx: &Tx<'_>, place: &Ref, volumes: &[Volume]) -> Result<Vec<Ref>, ApiError> {
    let mut found = Vec::new();
    for volume in volumes {
        let (view, Some(stored)) = (tx.view(), &volume.names) else { continue };
        let Ok(disk) = view.by_uuid(&vdi::CLASS, &volume.vdi.to_string()).cloned() else {
            continue;
        };
        let (is_here, now) =
            (reference(&view, &disk, vdi::Field::SR)? == *place, names::of(&view, &disk)?);
        if is_here && now != *stored && now.are_short() {
            found.push(disk);
        }
    }
    Ok(found)
}

/// Volume with the UUID of another SR's VDI: a copied file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DuplicateVolume {
    volume: Uuid,
    of: Ref,
}

/// Volumes of a scan that are not recorded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IgnoredVolumes {
    duplicates: Vec<DuplicateVolume>,
    /// Files that may be no raw images, and that nothing else knows as disks.
    no_raw: Vec<PassedOver>,
}

/// Reports ignored volumes in a message, once.
fn report_duplicates(
    tx: &mut Tx<'_>,
    storage: &SrHandle,
    duplicate_volumes: &[DuplicateVolume],
    now: Date,
) -> Result<(), ApiError> {
    if duplicate_volumes.is_empty() {
        return Ok(());
    }
    let view = tx.view();
    let place = |duplicate_volume: &DuplicateVolume| {
        text(&view, &duplicate_volume.of, sr::Field::uuid).unwrap_or_default()
    };
    let named = duplicate_volumes.iter().take(NAMED_MAX);
    let named = named.map(|duplicate_volume| {
        format!("{} of {}", duplicate_volume.volume, place(duplicate_volume))
    });
    let body = format!(
        "{} volumes have the UUID of a disk of another storage repository and are passed over: \
         {}. Remove such a copy, or name it by a UUID of its own.",
        duplicate_volumes.len(),
        named.collect::<Vec<_>>().join(", ")
    );
    report_passed_over(tx, storage, &body, now)
}

/// Reports files that cannot be read in a message, once.
fn report_unreadable(
    tx: &mut Tx<'_>,
    storage: &SrHandle,
    unreadable: &[UnreadableFile],
    now: Date,
) -> Result<(), ApiError> {
    if unreadable.is_empty() {
        return Ok(());
    }
    let named: Vec<_> = unreadable.iter().take(NAMED_MAX).map(|one| one.why.as_str()).collect();
    let body = format!(
        "{} files of this storage repository cannot be read: {}. Their disks stay as they are recorded, \
         and no disk can be destroyed meanwhile. All other disks are scanned.",
        unreadable.len(),
        named.join(". ")
    );
    report_passed_over(tx, storage, &body, now)
}

/// Reports what a scan has passed over in a message, unless a message says the same.
pub(super) fn report_passed_over(
    tx: &mut Tx<'_>,
    storage: &SrHandle,
    body: &str,
    now: Date,
) -> Result<(), ApiError> {
    let (uuid, name, cls) = (storage.id.to_string(), "SR_VOLUMES_PASSED_OVER", "SR");
    let is_reported = |one: &Object| {
        let is = |field: message::Field, text: &str| {
            one.get(field.into()).is_some_and(|value| *value == Value::text(text))
        };
        is(message::Field::name, name)
            && is(message::Field::obj_uuid, &uuid)
            && is(message::Field::body, body)
    };
    if tx.view().all(&message::CLASS).any(is_reported) {
        return Ok(());
    }
    tracing::warn!(sr = %storage.id, "{body}");
    write(tx, &MessageDraft { name, priority: 3, cls, uuid: &uuid, body }, now).map(drop)
}

/// Records the result of a scan: new VDIs, sizes, and missing VDIs. Records of missing VDIs stay,
/// because the volumes may come back. Records of VDIs that cannot be read stay as they are. Returns
/// the volumes that are not recorded: those with the UUID of another SR's VDI, and new ones whose
/// files may be no raw images.
pub(crate) fn found(
    tx: &mut Tx<'_>,
    place: &Ref,
    scan: &SrScan,
) -> Result<IgnoredVolumes, ApiError> {
    let mut there: BTreeMap<Uuid, &Volume> =
        scan.volumes.iter().map(|volume| (volume.vdi.0, volume)).collect();
    let doubtful: BTreeMap<Uuid, &Volume> =
        scan.doubtful.iter().map(|volume| (volume.vdi.0, volume)).collect();
    let mut sum: u64 = 0;
    for disk in references(&tx.view(), place, sr::Field::VDIs)? {
        let id = uuid(&tx.view(), &disk, vdi::Field::uuid)?;
        let volume = there.remove(&id).or_else(|| doubtful.get(&id).copied());
        if volume.is_some() || scan.unreadable_of(VdiId(id)).is_none() {
            tx.set(&disk, vdi::Field::missing, Value::Bool(volume.is_none()))?;
        }
        if let Some(volume) = volume {
            sizes(tx, &disk, volume)?;
        }
        sum = sum.saturating_add(bytes(&tx.view(), &disk, vdi::Field::virtual_size)?);
    }
    let (mut ignored, mut snapshots) = (IgnoredVolumes::default(), Vec::new());
    let no_raw: BTreeMap<_, _> = scan.no_raw.iter().map(|one| (one.vdi, one)).collect();
    for volume in there.into_values() {
        let name = volume.vdi.to_string();
        if let Ok(other) = tx.view().by_uuid(&vdi::CLASS, &name).cloned() {
            let of = reference(&tx.view(), &other, vdi::Field::SR)?;
            ignored.duplicates.push(DuplicateVolume { volume: volume.vdi.0, of });
            continue;
        }
        if let Some(no_raw) = no_raw.get(&volume.vdi) {
            let sr = text(&tx.view(), place, sr::Field::uuid)?.to_owned();
            ignored.no_raw.push(foreign::no_raw(no_raw, &sr));
            continue;
        }
        let disk = create(tx, place, volume)?;
        sum = sum.saturating_add(volume.virtual_bytes);
        if let Some(SnapshotOf { vdi, unix_seconds }) = volume.snapshot_of {
            snapshots.push((disk, vdi, Date(unix_seconds)));
        }
    }
    // All volumes have records by now.
    for (disk, of, at) in snapshots {
        tx.set(&disk, vdi::Field::is_a_snapshot, Value::Bool(true))?;
        tx.set(&disk, vdi::Field::snapshot_time, Value::Date(at))?;
        if let Ok(of) = tx.view().by_uuid(&vdi::CLASS, &of.to_string()).cloned() {
            tx.set(&disk, vdi::Field::snapshot_of, of.value())?;
        }
    }
    tx.set(place, sr::Field::virtual_allocation, size(sum))?;
    measured(tx, place, scan.space)?;
    Ok(ignored)
}

/// Records a new VDI.
fn create(tx: &mut Tx<'_>, place: &Ref, volume: &Volume) -> Result<Ref, ApiError> {
    let name = volume.vdi.to_string();
    let location = volume.file_name.as_ref().unwrap_or(&name);
    let stored = volume.names.clone().unwrap_or_default();
    let label = volume.file_name.clone().unwrap_or(stored.label);
    let disk = tx.create(
        &vdi::CLASS,
        vec![
            (vdi::Field::uuid.into(), Value::text(name.clone())),
            (vdi::Field::location.into(), Value::text(location.clone())),
            (vdi::Field::name_label.into(), Value::text(label)),
            (vdi::Field::name_description.into(), Value::text(stored.description)),
            (vdi::Field::SR.into(), place.value()),
            (vdi::Field::r#type.into(), Value::text("user")),
            (vdi::Field::managed.into(), Value::Bool(true)),
            (vdi::Field::read_only.into(), Value::Bool(volume.read_only)),
        ],
    )?;
    if volume.format != ImageFormat::Raw {
        let format = Value::text(volume.format.name());
        tx.set_key(&disk, vdi::Field::sm_config, FORMAT, Some(format))?;
    }
    sizes(tx, &disk, volume)?;
    if layers::has_layers(&tx.view(), &disk)? {
        tx.set(&disk, vdi::Field::sharable, Value::Bool(true))?;
    }
    if volume.resets {
        tx.set(&disk, vdi::Field::on_boot, Value::text(RESET))?;
    }
    Ok(disk)
}

/// Records the size and the use of an SR, and the part of caches of images.
pub(crate) fn measured(tx: &mut Tx<'_>, place: &Ref, space: Space) -> Result<(), ApiError> {
    tx.set(place, sr::Field::physical_size, size(space.total))?;
    tx.set(place, sr::Field::physical_utilisation, size(space.used))?;
    let Some(caches) = space.caches else { return Ok(()) };
    tx.set_key(place, sr::Field::sm_config, CACHES_KEY, Some(Value::text(caches.to_string())))
}

/// Records the new size of a VDI in its SR's totals. Adds only the difference, because an SR may
/// have very many VDIs. `before` and `after` are the virtual and physical sizes.
pub(crate) fn grown(
    tx: &mut Tx<'_>,
    place: &Ref,
    before: (u64, u64),
    after: (u64, u64),
) -> Result<(), ApiError> {
    let mut add = |field: sr::Field, before: u64, after: u64| {
        let now = bytes(&tx.view(), place, field)?;
        tx.set(place, field, size(now.saturating_add(after).saturating_sub(before)))
    };
    add(sr::Field::virtual_allocation, before.0, after.0)?;
    add(sr::Field::physical_utilisation, before.1, after.1)
}

fn sizes(tx: &mut Tx<'_>, disk: &Ref, volume: &Volume) -> Result<(), ApiError> {
    tx.set(disk, vdi::Field::virtual_size, size(volume.virtual_bytes))?;
    tx.set(disk, vdi::Field::physical_utilisation, size(volume.physical_bytes))?;
    // A user may set read-only for a writable volume. A read-only volume is always recorded as
    // such.
    if volume.read_only && !flag(&tx.view(), disk, vdi::Field::read_only)? {
        tx.set(disk, vdi::Field::read_only, Value::Bool(true))?;
    }
    Ok(())
}
