//! Calls on qcow2 images.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disk::{DiskError, ImageLock, open_image};
use image::qcow2::{Access, Image, Info};
use image::{CheckReport, ExtentKind, PlainFile, run_now};
use model::image::{
    ImageBacking, ImageBitmap, ImageCheckReport, ImageExtent, ImageExtentKind, ImageFault,
    ImageFormat, ImageInfo, ImageMap, ImageMapReply, ImageSnapshot, Qcow2Info,
};

use super::{ImageCallError, written_note};

/// Longest name in a report, in characters: 500 snapshots and 500 bitmaps fit into a reply.
const MAX_NAME_CHARS: usize = 255;

/// Open image with the file that its locks belong to.
struct OpenImage {
    image: Image<PlainFile>,
    file: Arc<OwnedFd>,
    _lock: Option<ImageLock>,
}

/// Lock that a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locking {
    None,
    Read,
    Write,
}

fn open(
    path: &Path,
    locking: Locking,
    stop: &Arc<AtomicBool>,
) -> Result<OpenImage, ImageCallError> {
    let writes = locking == Locking::Write;
    let file = Arc::new(open_image(path, !writes)?);
    // Locked before the first byte is read: a writer could change it meanwhile.
    let lock = match locking {
        Locking::None => None,
        Locking::Read | Locking::Write => Some(ImageLock::take(path, Arc::clone(&file), writes)?),
    };
    let own = file.try_clone().map_err(DiskError::os("open", path))?;
    let access = if writes { Access::Write } else { Access::Read };
    let mut image =
        run_now(Image::open(PlainFile::new(own), access)).map_err(ImageCallError::image(path))?;
    image.stop_when(Arc::clone(stop));
    Ok(OpenImage { image, file, _lock: lock })
}

pub(super) fn info(path: &Path, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    let mut open = open(path, Locking::None, stop)?;
    let info = run_now(open.image.info()).map_err(ImageCallError::image(path))?;
    let mut notes = Vec::from_iter(written_note(path, &open.file)?);
    if info.needs_repair {
        notes.push("the image is marked dirty or corrupt; run `qemu-img check -r all`".into());
    }
    Ok(ImageInfo {
        path: path.into(),
        format: ImageFormat::Qcow2,
        size_bytes: info.size,
        file_bytes: info.file_bytes,
        stored_bytes: super::raw::stored_bytes(path, &open.file)?,
        qcow2: Some(report(info)),
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

fn check_report(report: CheckReport) -> ImageCheckReport {
    let fault = |fault: image::Fault| ImageFault {
        offset: fault.offset,
        leak: fault.is_leak,
        problem: fault.problem,
    };
    ImageCheckReport {
        errors: report.errors,
        leaks: report.leaks,
        repaired_leaks: report.repaired_leaks,
        repaired_marks: report.repaired_marks,
        faults: report.faults.into_iter().map(fault).collect(),
        clusters: report.clusters,
        allocated_clusters: report.allocated_clusters,
        compressed_clusters: report.compressed_clusters,
    }
}

pub(super) fn map(
    call: &ImageMap,
    stop: &Arc<AtomicBool>,
) -> Result<ImageMapReply, ImageCallError> {
    let mut open = open(&call.path, Locking::Read, stop)?;
    // The limit is at most 10,000.
    let extents = run_now(open.image.map(call.start, call.limit as usize))
        .map_err(ImageCallError::image(&call.path))?;
    let size_bytes = open.image.header().size;
    let end = extents.last().map_or(size_bytes, |last| last.start + last.bytes);
    let extent = |extent: image::Extent| {
        let (kind, file_offset) = match extent.kind {
            ExtentKind::Unallocated => (ImageExtentKind::Unallocated, None),
            ExtentKind::Zero => (ImageExtentKind::Zero, None),
            ExtentKind::Data { host_offset } => (ImageExtentKind::Data, Some(host_offset)),
            ExtentKind::Compressed => (ImageExtentKind::Compressed, None),
        };
        ImageExtent { start: extent.start, bytes: extent.bytes, kind, file_offset }
    };
    Ok(ImageMapReply {
        size_bytes,
        extents: extents.into_iter().map(extent).collect(),
        next: (end < size_bytes).then_some(end),
    })
}
