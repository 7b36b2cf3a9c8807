//! Layers in qcow2 images.

use std::path::PathBuf;
use std::sync::Arc;

use disk::{Disk, FileDisk, Geometry};
use image::journal::JournalOwner;
use image::map::PagePool;
use image::qcow2::{Access, Header, Qcow2Format};
use image::{ImageError, run_now};

use crate::charged_file::ChargedFile;
use crate::disk::{MappedDisk, MappedOptions};
use crate::source::{ImageSource, JournalSource};

/// Smallest logical block in bytes.
const SECTOR: u32 = 512;

/// Options of a layer in an image.
#[derive(Clone)]
pub struct LayerOptions {
    /// Path of the image, for errors.
    pub path: PathBuf,
    /// True to refuse writes. Nothing in the file changes then.
    pub read_only: bool,
    /// Whether the file is open for direct I/O.
    pub direct: bool,
    /// Whether requests wait for space, or fail.
    pub waits_for_room: bool,
    /// Memory of the journal.
    pub journal: Arc<dyn JournalSource>,
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
        options: LayerOptions,
    ) -> Result<Self, ImageError> {
        let LayerOptions { path, read_only, direct, waits_for_room, journal, pages } = options;
        let alignment = file.geometry().block_size;
        let source = Qcow2Source {
            file: Arc::clone(&file),
            direct,
            read_only,
            below: below.as_ref().map(|below| below.geometry().size),
        };
        let header = run_now(Header::read(&source.file()?))?;
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
        let options = MappedOptions { path, geometry, waits_for_room, journal, pages };
        let mut disk = Self::new(file, below, options, source);
        disk.reference = header.backing().cloned();
        Ok(disk)
    }
}

/// File of a qcow2 image.
struct Qcow2Source {
    file: Arc<FileDisk>,
    direct: bool,
    read_only: bool,
    /// Size of the layer below in bytes, if there is one.
    below: Option<u64>,
}

impl Qcow2Source {
    fn file(&self) -> Result<ChargedFile, ImageError> {
        ChargedFile::open(&self.file, self.direct)
    }
}

impl ImageSource for Qcow2Source {
    type Format = Qcow2Format<ChargedFile>;

    fn open(&self) -> Result<Self::Format, ImageError> {
        let (file, has_below) = (self.file()?, self.below.is_some());
        match self.read_only {
            true => run_now(Qcow2Format::open_read_only(file, has_below)),
            false => run_now(Qcow2Format::open(file, has_below)),
        }
    }

    fn grow(&self, size: u64) -> Result<(), ImageError> {
        let mut format = run_now(Qcow2Format::open(self.file()?, self.below.is_some()))?;
        run_now(format.resize(size, self.below.unwrap_or(0)))
    }

    fn verify(&self, journal: &JournalOwner) -> Result<(), ImageError> {
        let mut format = run_now(Qcow2Format::open_read_only(self.file()?, self.below.is_some()))?;
        run_now(format.verify_journal(journal))
    }
}
