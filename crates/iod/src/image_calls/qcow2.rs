//! Calls on qcow2 images.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use image::qcow2::{Image, Info};
use image::{PlainFile, run_now};
use model::image::{
    ImageBacking, ImageBitmap, ImageCheckReport, ImageFormat, ImageInfo, ImageMap, ImageMapReply,
    ImageSnapshot, Qcow2Info,
};

use super::open_file::{Locking, OpenFile, check_report, map_reply};
use super::{ImageCallError, written_note};

/// Longest name in a report, in characters: 500 snapshots and 500 bitmaps fit into a reply.
const MAX_NAME_CHARS: usize = 255;

type OpenImage = OpenFile<Image<PlainFile>>;

fn open(
    path: &Path,
    locking: Locking,
    stop: &Arc<AtomicBool>,
) -> Result<OpenImage, ImageCallError> {
    let access = locking.access();
    let mut open = OpenFile::open(path, locking, |file| Image::open(file, access))?;
    open.image.stop_when(Arc::clone(stop));
    Ok(open)
}

pub(super) fn info(path: &Path, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    let mut open = open(path, Locking::None, stop)?;
    let info = run_now(open.image.info()).map_err(ImageCallError::image(path))?;
    let written = written_note(path, &open.file)?;
    let is_written = written.is_some();
    let mut notes = Vec::from_iter(written);
    if info.needs_repair {
        notes.push("the image is marked dirty or corrupt; run `qemu-img check -r all`".into());
    }
    Ok(ImageInfo {
        path: path.into(),
        format: ImageFormat::Qcow2,
        size_bytes: info.size,
        file_bytes: info.file_bytes,
        stored_bytes: super::raw::stored_bytes(path, &open.file)?,
        is_written,
        qcow2: Some(report(info)),
        vhd: None,
        notes,
    })
}

fn name(text: &str) -> String {
    text.chars().take(MAX_NAME_CHARS).collect()
}

fn report(info: Info) -> Qcow2Info {
    let backing = info.backing.map(|backing| ImageBacking {
        // JSON has text only.
        file: backing.file.to_string_lossy().into_owned().into(),
        format: backing.format.as_deref().map(name),
    });
    let snapshot = |snapshot: image::qcow2::Snapshot| ImageSnapshot {
        id: name(&snapshot.id),
        name: name(&snapshot.name),
        created_unix_seconds: snapshot.created_unix_seconds.into(),
        vm_state_bytes: snapshot.vm_state_bytes,
    };
    let bitmap = |bitmap: image::qcow2::Bitmap| ImageBitmap {
        name: name(&bitmap.name),
        granularity_bytes: bitmap.granularity,
        in_use: bitmap.is_in_use,
    };
    Qcow2Info {
        version: info.version,
        cluster_bytes: info.cluster_bytes,
        subcluster_bytes: info.subcluster_bytes,
        refcount_bits: info.refcount_bits,
        compression: info.compression.into(),
        features: info.features.iter().map(|name| String::from(*name)).collect(),
        needs_repair: info.needs_repair,
        backing,
        snapshot_count: info.snapshot_count,
        snapshots: info.snapshots.into_iter().map(snapshot).collect(),
        bitmap_count: info.bitmap_count,
        bitmaps: info.bitmaps.into_iter().map(bitmap).collect(),
    }
}

pub(super) fn check(
    path: &Path,
    repair_leaks: bool,
    stop: &Arc<AtomicBool>,
) -> Result<ImageCheckReport, ImageCallError> {
    let locking = if repair_leaks { Locking::Write } else { Locking::Read };
    let mut open = open(path, locking, stop)?;
    let checked =
        if repair_leaks { run_now(open.image.repair_leaks()) } else { run_now(open.image.check()) };
    checked.map(check_report).map_err(ImageCallError::image(path))
}

pub(super) fn map(
    call: &ImageMap,
    stop: &Arc<AtomicBool>,
) -> Result<ImageMapReply, ImageCallError> {
    let mut open = open(&call.path, Locking::Read, stop)?;
    // The limit is at most 10,000.
    let extents = run_now(open.image.map(call.start, call.limit as usize))
        .map_err(ImageCallError::image(&call.path))?;
    Ok(map_reply(open.image.header().size, extents))
}
