//! Layers in VHDs with blocks. A fixed VHD is its disk, and needs no map.

use std::sync::Arc;

use disk::{Disk, FileDisk, Geometry};
use image::format::Access;
use image::journal::JournalOwner;
use image::vhd::{DiskType, Image, OpenOptions, SECTOR, VhdFormat};
use image::{ImageError, PlainFile, run_now};

use crate::charged_file::ChargedFile;
use crate::disk::{MappedDisk, MappedOptions};
use crate::qcow2::LayerOptions;
use crate::source::ImageSource;

/// Bytes of a block that is written as a whole.
const BLOCK: u32 = 4096;

/// Footer of a VHD, as far as it decides how the image is served.
#[derive(Clone, Debug)]
pub struct VhdHead {
    /// Type of the image.
    pub disk_type: DiskType,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Identity of the content.
    pub unique_id: [u8; 16],
}

impl VhdHead {
    /// Reads the footer of an image.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn read(file: PlainFile) -> Result<Self, ImageError> {
        let image = run_now(Image::open(file, Access::Read))?;
        let footer = image.footer();
        let (disk_type, size, unique_id) = (footer.disk_type, footer.size, footer.unique_id);
        Ok(Self { disk_type, size, unique_id })
    }
}

impl MappedDisk {
    /// Opens a dynamic or differencing VHD. `below` is the parent, and `parent_id` its identity if it
    /// is a VHD. Takes no lock and changes nothing.
    ///
    /// # Errors
    /// The image is damaged or has a feature that is not supported, its file cannot be read, or the
    /// parent is another one than the image names.
    pub fn open_vhd(
        file: Arc<FileDisk>,
        below: Option<Arc<dyn Disk>>,
        parent_id: Option<[u8; 16]>,
        options: LayerOptions,
    ) -> Result<Self, ImageError> {
        let LayerOptions { path, read_only, direct, waits_for_room, journal, pages } = options;
        let alignment = file.geometry().block_size.max(SECTOR as u32);
        let access = if read_only { Access::Read } else { Access::Write };
        let mut image = run_now(Image::open(ChargedFile::open(&file, direct)?, access))?;
        image.check_parent(below.is_some(), parent_id)?;
        let reference = run_now(async { Ok(image.reference().await) })?;
        let size = image.footer().size;
        if direct && u64::from(alignment) > SECTOR {
            run_now(image.check_alignment(alignment.into()))?;
        }
        let in_blocks = !read_only && size.is_multiple_of(BLOCK.into());
        let of_below = below.as_ref().map_or(alignment, |below| below.geometry().block_size);
        let block_size = alignment.max(of_below).max(if in_blocks { BLOCK } else { 0 });
        if !size.is_multiple_of(block_size.into()) {
            let problem = format!(
                "the disk has {size} bytes, not a multiple of the {block_size} bytes that this \
                 storage needs; copy it to a new image with `ringway image convert`"
            );
            return Err(ImageError::Create { problem });
        }
        let source = VhdSource {
            file: Arc::clone(&file),
            direct,
            options: OpenOptions {
                has_below: below.is_some(),
                alignment: if direct { alignment.into() } else { SECTOR },
                write_bytes: block_size.into(),
            },
            read_only,
            below_size: below.as_ref().map_or(0, |below| below.geometry().size),
        };
        let block_bytes = image.header().map_or(0, |header| header.block_bytes);
        let geometry = Geometry {
            size,
            block_size,
            read_only,
            // Bits cannot say that a part of the parent is zero.
            discard: below.is_none(),
            discard_granularity: u32::try_from(block_bytes).unwrap_or(u32::MAX),
        };
        let options = MappedOptions { path, geometry, waits_for_room, journal, pages };
        let mut disk = Self::new(file, below, options, source);
        disk.reference = reference;
        Ok(disk)
    }
}

/// File of a VHD.
struct VhdSource {
    file: Arc<FileDisk>,
    direct: bool,
    options: OpenOptions,
    read_only: bool,
    /// Size of the parent in bytes, 0 if there is none.
    below_size: u64,
}

impl VhdSource {
    fn file(&self) -> Result<ChargedFile, ImageError> {
        ChargedFile::open(&self.file, self.direct)
    }

    fn writer(&self) -> Result<VhdFormat<ChargedFile>, ImageError> {
        run_now(VhdFormat::open(self.file()?, self.options))
    }
}

impl ImageSource for VhdSource {
    type Format = VhdFormat<ChargedFile>;

    fn open(&self) -> Result<Self::Format, ImageError> {
        match self.read_only {
            true => run_now(VhdFormat::open_read_only(self.file()?, self.options)),
            false => self.writer(),
        }
    }

    fn grow(&self, size: u64) -> Result<(), ImageError> {
        run_now(self.writer()?.resize(size, self.below_size))
    }

    fn verify(&self, journal: &JournalOwner) -> Result<(), ImageError> {
        run_now(self.writer()?.verify_journal(journal))
    }
}
