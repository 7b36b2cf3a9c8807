//! The new content of a disk, in an image of its own.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::DiskError;
use image::format::Backing;
use image::qcow2::export_cluster_bits;
use image::{BitSet, ImageError, PlainFile};
use model::image::{ImageBacking, ImageFormat};
use model::image_stream::ImageImported;
use model::spec::{Backend, FileRef};

use super::ImportError;
use crate::image_calls::ImageCallError;
use crate::image_calls::new_file::NewFile;
use crate::image_calls::source::Source;
use crate::image_calls::target::{Target, TargetFormat};
use crate::image_calls::vhd;

/// Unit that is written as a whole, in bytes: a cluster of Ringway's own images.
pub(super) const UNIT: u64 = 64 << 10;

/// Kind of the new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All of the disk. What is not written is zero.
    Whole,
    /// A part of the disk. What is not written stays.
    Delta,
}

/// New content of a disk. The present content stays as it is.
pub(super) struct NewContent<'a> {
    tree: &'a Backend,
    path: &'a Path,
    stop: &'a Arc<AtomicBool>,
    /// The disk as it is, locked against writers.
    present: Source,
    file: NewFile,
    /// The image, once its kind is known.
    image: Option<(Kind, Target)>,
    /// Units that were written.
    written: BitSet,
}

impl<'a> NewContent<'a> {
    /// Opens the disk as it is, and creates the file of the new image at `path`.
    pub(super) fn open(
        tree: &'a Backend,
        path: &'a Path,
        stop: &'a Arc<AtomicBool>,
    ) -> Result<Self, ImageCallError> {
        let present = Source::open(tree, stop, false)?;
        let file = NewFile::create(path).map_err(DiskError::os("create", path))?;
        let bits = export_cluster_bits(present.size());
        if 1 << bits != UNIT {
            let why = "disks of more than 16 TiB cannot be imported";
            return Err(ImageCallError::Refused(why.into()));
        }
        let written = BitSet::new(present.size().div_ceil(UNIT));
        Ok(Self { tree, path, stop, present, file, image: None, written })
    }

    /// Returns the size of the disk in bytes.
    pub(super) fn size(&self) -> u64 {
        self.present.size()
    }

    /// Begins content that is all of the disk: what is not written becomes zero.
    pub(super) fn begin_whole(&mut self) -> Result<(), ImageCallError> {
        self.begin(Kind::Whole)
    }

    /// Begins content that is a part of the disk: what is not written stays.
    pub(super) fn begin_delta(&mut self) -> Result<(), ImageCallError> {
        self.begin(Kind::Delta)
    }

    fn begin(&mut self, kind: Kind) -> Result<(), ImageCallError> {
        let (file, size) = (self.own_file()?, self.size());
        let format = match (self.tree, kind) {
            (Backend::File(_), Kind::Whole) => TargetFormat::Raw,
            (Backend::File(file), Kind::Delta) => {
                TargetFormat::Qcow2(Some(backing(file, ImageFormat::Raw)?))
            }
            (Backend::Qcow2 { backing: below, .. }, _) => {
                TargetFormat::Qcow2(below.as_deref().map(backing_of).transpose()?)
            }
            (Backend::Vhd { backing: below, .. }, _) => {
                let parent = |below: &Backend| {
                    let (file, format) = (file_name(below)?, below.image());
                    let format = format.map(|(_, format)| format.name().into());
                    vhd::parent(self.path, &ImageBacking { file, format }, self.stop)
                };
                TargetFormat::Vhd(below.as_deref().map(parent).transpose()?, None)
            }
            _ => {
                let why = "only disks in image files can be imported into";
                return Err(ImageCallError::Refused(why.into()));
            }
        };
        let target = Target::create(PlainFile::new(file), format, size);
        self.image = Some((kind, target.map_err(self.failed())?));
        Ok(())
    }

    fn own_file(&self) -> Result<OwnedFd, ImageCallError> {
        let own = self.file.fd().try_clone();
        Ok(own.map_err(DiskError::os("create", self.path))?)
    }

    fn failed(&self) -> impl Fn(ImageError) -> ImageCallError + use<'a> {
        ImageCallError::image(self.path)
    }

    /// Writes whole units, of which the last one may end with the disk. No unit may be written
    /// twice.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ImportError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ImportError::Failed(self.failed()(ImageError::Stopped)));
        }
        let failed = self.failed();
        let Some((_, target)) = &mut self.image else { return Ok(()) };
        target.write(offset, data).map_err(failed)?;
        let units = offset / UNIT..(offset + data.len() as u64).div_ceil(UNIT);
        units.for_each(|unit| self.written.insert(unit));
        Ok(())
    }

    /// Reads the disk as it is.
    pub(super) fn read_present(&mut self, offset: u64, out: &mut [u8]) -> Result<(), ImportError> {
        Ok(self.present.read(offset, out)?)
    }

    /// Completes the image, which gets its name.
    pub(super) fn finish(mut self) -> Result<ImageImported, ImageCallError> {
        let path = self.path;
        let failed = ImageCallError::image(path);
        let Some((kind, mut target)) = self.image.take() else {
            return Err(ImageCallError::Refused("the stream has no image".into()));
        };
        let is_raw = matches!(self.tree, Backend::File(_));
        match kind {
            Kind::Whole if !is_raw => self.hide_below(&mut target)?,
            Kind::Delta if !is_raw => self.keep_top(&mut target)?,
            _ => {}
        }
        target.finish().map_err(&failed)?;
        self.file.publish().map_err(DiskError::os("store", path))?;
        Ok(match kind {
            Kind::Delta if is_raw => ImageImported::Layer,
            _ => ImageImported::Replacement,
        })
    }

    /// Makes zero what the images below the top have and the new content does not.
    fn hide_below(&mut self, target: &mut Target) -> Result<(), ImageCallError> {
        let Some(below) = self.tree.below(1) else { return Ok(()) };
        let mut below = Source::open(below, self.stop, false)?;
        // A unit has 64 KiB.
        let zeroes = vec![0; UNIT as usize];
        self.each_other_unit(
            |_, at, end| below.next_data(at, end),
            |_, at, len| target.write(at, zeroes.get(..len).unwrap_or_default()),
        )
    }

    /// Copies what the top has and the new content does not.
    fn keep_top(&mut self, target: &mut Target) -> Result<(), ImageCallError> {
        let below = match self.tree.below(1) {
            Some(below) => path_of(below)?.display().to_string(),
            None => String::new(),
        };
        let mut unit = vec![0; UNIT as usize];
        let mut broken = None;
        self.each_other_unit(
            |present, at, end| present.next_change(at, end, &below),
            |present, at, len| {
                let part = unit.get_mut(..len).unwrap_or_default();
                match present.read(at, part) {
                    Ok(()) => target.write(at, part),
                    Err(error) => {
                        broken = Some(error);
                        Err(ImageError::Stopped)
                    }
                }
            },
        )
        .map_err(|error| broken.take().unwrap_or(error))
    }

    /// Passes each unit that was not written, and in which `next` finds something, to `write`.
    fn each_other_unit(
        &mut self,
        mut next: impl FnMut(&mut Source, u64, u64) -> Result<u64, ImageCallError>,
        mut write: impl FnMut(&mut Source, u64, usize) -> Result<(), ImageError>,
    ) -> Result<(), ImageCallError> {
        let (failed, size) = (self.failed(), self.size());
        let mut at = 0;
        while at < size {
            if self.stop.load(Ordering::Relaxed) {
                return Err(failed(ImageError::Stopped));
            }
            let found = next(&mut self.present, at, size)?;
            let unit = found / UNIT;
            if found < size && !self.written.contains(unit) {
                let start = unit * UNIT;
                let len = (size - start).min(UNIT) as usize;
                write(&mut self.present, start, len).map_err(&failed)?;
            }
            at = (unit + 1) * UNIT;
        }
        Ok(())
    }
}

/// Returns the reference to the image at the top of a tree.
fn backing_of(below: &Backend) -> Result<Backing, ImageCallError> {
    let format = match below {
        Backend::Qcow2 { .. } => ImageFormat::Qcow2,
        Backend::Vhd { .. } => ImageFormat::Vhd,
        _ => ImageFormat::Raw,
    };
    Ok(Backing { file: file_name(below)?, format: Some(format.qemu_name().into()) })
}

fn file_name(below: &Backend) -> Result<PathBuf, ImageCallError> {
    Ok(PathBuf::from(path_of(below)?.file_name().unwrap_or_default()))
}

fn backing(file: &FileRef, format: ImageFormat) -> Result<Backing, ImageCallError> {
    let name = file.path().and_then(Path::file_name);
    let name = name.ok_or_else(|| ImageCallError::Refused("an image has no path".into()))?;
    Ok(Backing { file: name.into(), format: Some(format.qemu_name().into()) })
}

fn path_of(tree: &Backend) -> Result<&Path, ImageCallError> {
    let path = tree.files().next().and_then(FileRef::path);
    path.ok_or_else(|| ImageCallError::Refused("an image has no path".into()))
}
