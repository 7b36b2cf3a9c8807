//! New image over the present tree of a disk.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use image::format::Backing;
use image::{ImageError, PlainFile, qcow2, vhd};
use mapped::VhdHead;
use model::image::ImageFormat;
use model::spec::Backend;

use crate::open_disk::OpenTree;

/// Alignment of reads that is enough for direct I/O on every storage.
const ALIGNMENT: usize = 4096;

/// Image that is to be created.
pub(super) struct NewImage {
    size: u64,
    kind: Kind,
}

enum Kind {
    Qcow2(Option<Backing>),
    /// Over the file at this path, which is open as a VHD, or is a raw image.
    Vhd(PathBuf, Option<Arc<OwnedFd>>),
}

impl NewImage {
    /// Returns an image of a disk of `size` bytes.
    ///
    /// # Errors
    /// Such an image cannot lie over the tree.
    pub(super) fn over(
        tree: &OpenTree,
        format: ImageFormat,
        size: u64,
    ) -> Result<Self, ImageError> {
        let refuse = |problem: &str| Err(ImageError::Create { problem: problem.into() });
        let kind = match format {
            ImageFormat::Qcow2 => Kind::Qcow2(reference(&tree.backend)),
            ImageFormat::Raw => {
                return refuse("a raw image lies over no other; state qcow2 or vhd");
            }
            ImageFormat::Vhd => {
                let path = tree.backend.image().and_then(|(file, format)| {
                    let path = std::path::absolute(file.path()?).ok()?;
                    Some((path, format))
                });
                match path {
                    Some((path, ImageFormat::Raw)) => Kind::Vhd(path, None),
                    Some((path, ImageFormat::Vhd)) => {
                        let file = tree.files.first().map(|file| file.disk.handover().0.clone());
                        Kind::Vhd(path, file)
                    }
                    _ => return refuse("a VHD lies over a VHD or a raw image; state qcow2"),
                }
            }
        };
        Ok(Self { size, kind })
    }

    /// Creates the image. May wait for the storage.
    pub(super) fn create(self, path: &Path) -> Result<(), ImageError> {
        let Self { size, kind } = self;
        let (file, fd) = match kind {
            Kind::Qcow2(backing) => {
                let options = qcow2::CreateOptions { backing, ..qcow2::CreateOptions::new(size) };
                return qcow2::create_file(path, &options);
            }
            Kind::Vhd(file, fd) => (file, fd),
        };
        let unique_id = match fd {
            None => [0; 16],
            Some(fd) => {
                let file = PlainFile::direct(fd, ALIGNMENT).map_err(ImageError::io("open", 0))?;
                VhdHead::read(file)?.unique_id
            }
        };
        // The parent is in use until now.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let parent = vhd::Parent { file, unique_id, unix_seconds: now };
        vhd::create_file(path, &vhd::CreateOptions::differencing(size, parent))
    }
}

/// Returns how an image refers to the tree below it. A tree that other programs cannot open from one
/// path has none.
fn reference(backend: &Backend) -> Option<Backing> {
    let (file, format) = backend.image()?;
    let file = std::path::absolute(file.path()?).ok()?;
    Some(Backing { file, format: Some(format.qemu_name().into()) })
}
