//! Layers in qcow2 images.

use std::path::PathBuf;
use std::sync::Arc;

use disk::{Disk, FileDisk, Geometry};
use image::journal::Cells;
use image::map::PagePool;
use image::qcow2::{Access, Header, Qcow2Format};
use image::{ImageError, PlainFile, run_now};

use crate::disk::{MappedDisk, MappedOptions};

/// Smallest logical block in bytes.
const SECTOR: u32 = 512;

/// Options of a qcow2 layer.
#[derive(Clone)]
pub struct Qcow2Options {
    /// Path of the image, for errors.
    pub path: PathBuf,
    /// True to refuse writes. Nothing in the file changes then.
    pub read_only: bool,
    /// Whether the file is open for direct I/O.
    pub direct: bool,
    /// Whether requests wait for space, or fail.
    pub waits_for_room: bool,
    /// Memory of the journal.
    pub journal: Cells,
    /// Pool of the pages of the map.
    pub pages: Arc<PagePool>,
}

impl MappedDisk {
    /// Opens a qcow2 image. `below` has what the image does not have. Takes no lock and changes
    /// nothing.
    ///
    /// # Errors
    /// The image is damaged or has a feature that is not supported, or its file cannot be read.
    pub fn open_qcow2(
        file: Arc<FileDisk>,
        below: Option<Arc<dyn Disk>>,
        options: Qcow2Options,
    ) -> Result<Self, ImageError> {
        let Qcow2Options { path, read_only, direct, waits_for_room, journal, pages } = options;
        let alignment = file.geometry().block_size;
        let open_file = {
            let file = Arc::clone(&file);
            move || metadata_file(&file, direct.then_some(alignment))
        };
        let header = run_now(Header::read(&open_file()?))?;
        header.check_access(if read_only { Access::Read } else { Access::Write })?;
        let block_size = match header.has_extended_l2() && !read_only {
            true => header.block_bytes(),
            false => alignment,
        };
        // Requests go to the layer below as they are, apart from cuts between clusters.
        let of_below = below.as_ref().map_or(SECTOR, |below| below.geometry().block_size);
        let block_size = block_size.max(of_below).max(SECTOR);
        if header.cluster_bytes() < u64::from(block_size) {
            let clusters = header.cluster_bytes();
            let feature =
                format!("clusters of {clusters} bytes on storage with blocks of {block_size}");
            let next = "copy it to an image with larger clusters";
            return Err(ImageError::Unsupported { feature, next });
        }
        if header.size % u64::from(block_size) != 0 {
            let problem = format!(
                "the disk has {} bytes, not a multiple of {block_size}, which writes to images with \
                 extended L2 entries or on this storage need; grow it with `qemu-img resize`",
                header.size
            );
            return Err(ImageError::Create { problem });
        }
        let geometry = Geometry {
            size: header.size,
            block_size,
            read_only,
            discard: true,
            discard_granularity: u32::try_from(header.cluster_bytes()).unwrap_or(u32::MAX),
        };
        let has_below = below.is_some();
        let open = move || {
            let file = Arc::new(open_file()?);
            match read_only {
                true => run_now(Qcow2Format::open_read_only(file, has_below)),
                false => run_now(Qcow2Format::open(file, has_below)),
            }
        };
        let options = MappedOptions { path, geometry, waits_for_room, journal, pages };
        Ok(Self::new(file, below, options, open))
    }
}

/// Returns the file for metadata. It shares the open file with the data, and so locks and fence.
fn metadata_file(file: &FileDisk, direct: Option<u32>) -> Result<PlainFile, ImageError> {
    let fd = file.handover().0.try_clone().map_err(ImageError::io("duplicate", 0))?;
    match direct {
        Some(alignment) => {
            PlainFile::direct(fd, alignment as usize).map_err(ImageError::io("open", 0))
        }
        None => Ok(PlainFile::new(fd)),
    }
}
