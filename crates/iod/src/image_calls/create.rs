//! Creation of images.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disk::{DiskError, ImageLock, open_image};
use image::format::Backing;
use image::qcow2::{CreateOptions, create_file};
use image::vhd;
use model::image::{ImageBacking, ImageCreate, ImageFormat, ImageSnapshotCall};
use model::spec::MAX_DISK_BYTES;
use rustix::fs::ftruncate;

use super::ImageCallError;
use super::new_file::{NewFile, folder_of};

/// Unit of the size of a disk, in bytes.
const SECTOR: u64 = 512;

pub(super) fn create(call: &ImageCreate, stop: &Arc<AtomicBool>) -> Result<(), ImageCallError> {
    let ImageCreate { path, format, size, backing, fixed } = call;
    if *fixed && (*format != ImageFormat::Vhd || backing.is_some()) {
        let problem = "a fixed image is a VHD without a backing";
        return Err(ImageCallError::Refused(problem.into()));
    }
    if let Some(backing) = backing {
        find_backing(path, backing)?;
    }
    match (format, backing) {
        (ImageFormat::Raw, Some(_)) => {
            let problem = "a raw image has no backing; create a qcow2 image";
            Err(ImageCallError::Refused(problem.into()))
        }
        (ImageFormat::Raw, None) => create_raw(path, *size),
        (ImageFormat::Qcow2, backing) => {
            let backing = backing.as_ref().map(|backing| Backing {
                file: backing.file.clone(),
                format: backing.format.as_deref().map(header_name),
            });
            let options = CreateOptions { backing, ..CreateOptions::new(*size) };
            create_file(path, &options).map_err(ImageCallError::image(path))
        }
        (ImageFormat::Vhd, backing) => create_vhd(path, *size, backing.as_ref(), *fixed, stop),
    }
}

/// Returns the name of a format as headers of qcow2 images have it.
fn header_name(format: &str) -> String {
    format.parse().map_or_else(|_| format.into(), |format: ImageFormat| format.qemu_name().into())
}

fn create_vhd(
    path: &Path,
    size: u64,
    backing: Option<&ImageBacking>,
    fixed: bool,
    stop: &Arc<AtomicBool>,
) -> Result<(), ImageCallError> {
    let options = match backing {
        Some(backing) => {
            vhd::CreateOptions::differencing(size, super::vhd::parent(path, backing, stop)?)
        }
        None if fixed => vhd::CreateOptions::fixed(size),
        None => vhd::CreateOptions::dynamic(size),
    };
    vhd::create_file(path, &options).map_err(ImageCallError::image(path))
}

/// Creates an image over one that no process writes. The base is locked meanwhile.
pub(super) fn snapshot(
    call: &ImageSnapshotCall,
    stop: &Arc<AtomicBool>,
) -> Result<(), ImageCallError> {
    let ImageSnapshotCall { base, base_format, path, format } = call;
    let file = Arc::new(open_image(base, true)?);
    let _lock = ImageLock::take(base, file, false)?;
    let size = match base_format {
        ImageFormat::Raw => super::raw::info(base)?.size_bytes,
        ImageFormat::Qcow2 => super::qcow2::info(base, stop)?.size_bytes,
        ImageFormat::Vhd => super::vhd::info(base, stop)?.size_bytes,
    };
    // In one folder, the two may move together.
    let name = base.file_name().filter(|_| base.parent() == path.parent());
    let file = name.map_or_else(|| base.clone(), PathBuf::from);
    let backing = Some(ImageBacking { file, format: Some(base_format.name().into()) });
    let (path, format) = (path.clone(), *format);
    if format == ImageFormat::Raw {
        let problem = "a raw image lies over no other; create a qcow2 image or a VHD";
        return Err(ImageCallError::Refused(problem.into()));
    }
    create(&ImageCreate { path, format, size, backing, fixed: false }, stop)
}

/// Checks that the image below exists. Its name is relative to the directory of the new image.
fn find_backing(image: &Path, backing: &ImageBacking) -> Result<(), ImageCallError> {
    let path = folder_of(image).join(&backing.file);
    path.metadata().map(drop).map_err(|error| {
        let problem = format!("backing image {}: {error}; give the path of one", path.display());
        ImageCallError::Refused(problem)
    })
}

fn create_raw(path: &Path, size: u64) -> Result<(), ImageCallError> {
    if size == 0 || !size.is_multiple_of(SECTOR) || size > MAX_DISK_BYTES {
        let problem = format!("a disk has a multiple of {SECTOR} bytes, not {size}");
        return Err(ImageCallError::Refused(problem));
    }
    let file = NewFile::create(path).map_err(DiskError::os("create", path))?;
    ftruncate(file.fd(), size).map_err(DiskError::os("store", path))?;
    Ok(file.publish().map_err(DiskError::os("store", path))?)
}
