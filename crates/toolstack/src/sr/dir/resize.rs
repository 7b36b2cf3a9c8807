//! Growth of volumes.

use std::fs::File;

use model::id::VdiId;
use model::image::ImageFormat;
use rustix::fs::{Mode, OFlags, openat};

use super::directory::{SIZE, SrDirectory, whole_units};
use super::record::Record;
use crate::sr::{SrError, Volume};

impl SrDirectory<'_> {
    /// Checks that a volume can grow to this size in bytes. Returns the images of a volume whose top
    /// is not raw, top first: the top becomes larger before [`Self::resize_volume`].
    ///
    /// # Errors
    /// It does not exist, it is larger, the size is invalid, or the space does not suffice.
    pub(crate) fn prepare_resize(&self, vdi: VdiId, bytes: u64) -> Result<Vec<String>, SrError> {
        let (bytes, volume) = (whole_units(bytes)?, self.volume(vdi)?);
        let has = volume.virtual_bytes;
        if bytes < has {
            let why = format!("a volume of {has} bytes does not shrink to {bytes}");
            return Err(SrError::Config { key: SIZE.into(), why });
        }
        if volume.resets {
            let why = "the disk goes back to its content, and its size, at each boot: set on-boot to \
                       persist first";
            return Err(SrError::Config { key: SIZE.into(), why: why.into() });
        }
        if volume.read_only {
            let why = format!("volume {vdi} is never written");
            return Err(SrError::Config { key: SIZE.into(), why });
        }
        if bytes > has {
            self.check_room(bytes - has)?;
        }
        let record = self.known(vdi)?;
        match record.top().map(|top| top.format()) {
            None | Some(ImageFormat::Raw) => Ok(Vec::new()),
            Some(_) => self.images(vdi),
        }
    }

    /// Grows a volume. The top image has the size already, unless it is raw.
    ///
    /// # Errors
    /// As [`Self::prepare_resize`].
    pub(crate) fn resize_volume(&self, vdi: VdiId, bytes: u64) -> Result<Volume, SrError> {
        let _lock = self.lock_records();
        self.prepare_resize(vdi, bytes)?;
        let (bytes, record) = (whole_units(bytes)?, self.known(vdi)?);
        match record.top() {
            Some(top) if top.format() != ImageFormat::Raw => {
                self.put_record(vdi, &Record { bytes, ..record })?;
            }
            Some(top) => self.grow_raw(&top.to_string(), bytes)?,
            None => return Err(SrError::NoVolume(vdi)),
        }
        self.volume(vdi)
    }

    fn grow_raw(&self, name: &str, bytes: u64) -> Result<(), SrError> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.fd, name, flags, Mode::empty());
        let file = File::from(file.map_err(|error| self.os("open", name, error))?);
        let grown = file.set_len(bytes).and_then(|()| file.sync_all());
        grown.map_err(|error| self.failed("grow", name, bytes, error))
    }
}
