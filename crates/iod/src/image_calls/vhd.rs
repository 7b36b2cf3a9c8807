//! Calls on VHDs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::UNIX_EPOCH;

use image::vhd::{Image, Info, Parent, ParentInfo, id_text};
use image::{PlainFile, run_now};
use model::image::{
    ImageBacking, ImageCheckReport, ImageFormat, ImageInfo, ImageMap, ImageMapReply, VhdInfo,
    VhdParent,
};

use super::new_file::folder_of;
use super::open_file::{Locking, OpenFile, check_report, map_reply};
use super::{ImageCallError, written_note};

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
    if info.in_saved_state {
        notes.push("a machine was suspended with the disk, so the image can be read only".into());
    }
    if !info.has_same_footers && notes.is_empty() {
        let note = "the footers differ, and the one at byte 0 holds; the next writer repairs that";
        notes.push(note.into());
    }
    Ok(ImageInfo {
        path: path.into(),
        format: ImageFormat::Vhd,
        size_bytes: info.size,
        file_bytes: info.file_bytes,
        stored_bytes: super::raw::stored_bytes(path, &open.file)?,
        is_written,
        qcow2: None,
        vhd: Some(report(info)),
        notes,
    })
}

fn report(info: Info) -> VhdInfo {
    let parent = |parent: ParentInfo| VhdParent {
        unique_id: id_text(&parent.unique_id),
        unix_seconds: parent.unix_seconds,
        path: parent.path,
    };
    VhdInfo {
        disk_type: info.disk_type.name().into(),
        block_bytes: info.block_bytes,
        creator: info.creator,
        created_unix_seconds: info.created_unix_seconds,
        unique_id: id_text(&info.unique_id),
        parent: info.parent.map(parent),
        batmap: info.has_batmap,
    }
}

pub(super) fn check(
    path: &Path,
    repair_leaks: bool,
    stop: &Arc<AtomicBool>,
) -> Result<ImageCheckReport, ImageCallError> {
    if repair_leaks {
        let problem = "free space inside of a VHD needs no repair: its next writer uses it";
        return Err(ImageCallError::Refused(problem.into()));
    }
    let mut open = open(path, Locking::Read, stop)?;
    run_now(open.image.check()).map(check_report).map_err(ImageCallError::image(path))
}

pub(super) fn map(
    call: &ImageMap,
    stop: &Arc<AtomicBool>,
) -> Result<ImageMapReply, ImageCallError> {
    let mut open = open(&call.path, Locking::Read, stop)?;
    // The limit is at most 10,000.
    let extents = run_now(open.image.map(call.start, call.limit as usize));
    let extents = extents.map_err(ImageCallError::image(&call.path))?;
    Ok(map_reply(open.image.footer().size, extents))
}

/// Returns the reference of a new image at `image` to its parent, which is opened for it.
pub(super) fn parent(
    image: &Path,
    backing: &ImageBacking,
    stop: &Arc<AtomicBool>,
) -> Result<Parent, ImageCallError> {
    let path = folder_of(image).join(&backing.file);
    let unique_id = match backing.format.as_deref() {
        Some("vhd") => open(&path, Locking::None, stop)?.image.footer().unique_id,
        Some("raw") => [0; 16],
        _ => {
            let problem = "a VHD lies over a VHD or a raw image; create a qcow2 image over others";
            return Err(ImageCallError::Refused(problem.into()));
        }
    };
    let changed = path.metadata().and_then(|found| found.modified());
    let changed =
        changed.map_err(|error| ImageCallError::Refused(format!("{}: {error}", path.display())))?;
    let unix_seconds = changed.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Parent { file: backing.file.clone(), unique_id, unix_seconds })
}
