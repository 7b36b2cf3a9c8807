//! Volumes that share images: records, new layers, snapshots and clones.
//!
//! # Crash rules
//! - A record names a new image before the image exists (`next`). So each image of this driver is
//!   named by a record.
//! - An image that two records name is never written. A volume gets its new top before another
//!   record names the old one.
//! - A record is renamed before the images that only it names are removed. The next attach removes
//!   what such a record names.

mod import;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, statat};
use rustix::io::{Errno, retry_on_intr};

use super::directory::{SrDirectory, location, volume};
use super::marker::{MARKER, Marker};
use super::record::{self, FileState, ImageName, MAX_IMAGES, Record, SnapshotOf};
use crate::sr::{Names, SrError, Volume};
pub(super) use import::import_name;

/// Lock of all records that this process changes. A worker has one SR.
static TURN: Mutex<()> = Mutex::new(());
/// Space that an empty image needs, in bytes: about as much as its tables.
const LAYER_BYTES: u64 = 1 << 20;
/// Configuration key that errors about snapshots name.
const SNAPSHOT: &str = "snapshot";

impl SrDirectory<'_> {
    /// Excludes other changes of records until the lock is dropped: those of this process, and those
    /// of abandoned workers where the file system locks directories. NFS does not.
    pub(super) fn lock_records(&self) -> RecordLock<'_> {
        // The lock protects no value.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let _unlocked = retry_on_intr(|| flock(&self.fd, FlockOperation::LockExclusive));
        RecordLock { directory: self.fd.as_fd(), _turn: turn }
    }

    /// Reads the record of a volume. `None` if it has none.
    ///
    /// # Errors
    /// The record is invalid, or a system call failed.
    pub(super) fn record(&self, vdi: VdiId) -> Result<Option<Record>, SrError> {
        self.read_record(&record_name(vdi))
    }

    pub(super) fn read_record(&self, name: &str) -> Result<Option<Record>, SrError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => std::fs::File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.os("open", name, error)),
        };
        let mut text = Vec::new();
        let read = file.take(record::MAX_BYTES).read_to_end(&mut text);
        read.map_err(|error| self.failed("read", name, 0, error))?;
        Record::parse(&text).map(Some).map_err(|why| {
            let place = self.place.join(name);
            location(format!("{}: {why}; restore this file from a backup", place.display()))
        })
    }

    /// Reads the records among these names of files.
    pub(super) fn records(&self, names: &[String]) -> Result<BTreeMap<VdiId, Record>, SrError> {
        self.records_with(names, record::SUFFIX)
    }

    /// Reads the records of volumes that are being removed among these names of files.
    pub(super) fn removed(&self, names: &[String]) -> Result<BTreeMap<VdiId, Record>, SrError> {
        self.records_with(names, record::REMOVED)
    }

    fn records_with(
        &self,
        names: &[String],
        suffix: &str,
    ) -> Result<BTreeMap<VdiId, Record>, SrError> {
        // A record that was removed after its name was read is skipped.
        let read = |(vdi, name): (VdiId, &String)| {
            Some(self.read_record(name).transpose()?.map(|record| (vdi, record)))
        };
        Self::of_volumes(names, suffix).filter_map(read).collect()
    }

    /// Returns those of these names that are a UUID and this suffix, with the volume.
    pub(super) fn of_volumes<'n>(
        names: &'n [String],
        suffix: &str,
    ) -> impl Iterator<Item = (VdiId, &'n String)> {
        names.iter().filter_map(move |name| {
            let vdi = name.strip_suffix(suffix)?.parse().ok().map(VdiId)?;
            (*name == format!("{vdi}{suffix}")).then_some((vdi, name))
        })
    }

    pub(super) fn put_record(&self, vdi: VdiId, record: &Record) -> Result<(), SrError> {
        if let Some(marker) = self.marker()?.and_then(Marker::with_records) {
            let text = marker.text();
            let bytes = text.len().try_into().unwrap_or_default();
            self.replace(MARKER, bytes, |mut file| file.write_all(text.as_bytes()))?;
        }
        // Serialization of plain fields cannot fail.
        let text = serde_json::to_vec(record).unwrap_or_default();
        let bytes = text.len().try_into().unwrap_or_default();
        self.replace(&record_name(vdi), bytes, |mut file| file.write_all(&text))
    }

    /// Returns the images of a volume as they are now: a new image that exists is the top.
    pub(super) fn resolved(&self, mut record: Record) -> Result<Record, SrError> {
        match record.next {
            Some(next) if self.has(&next.to_string())? => {
                if record.resets {
                    return self.after_reset(record);
                }
                record.push_next();
            }
            _ => (record.next, record.resets) = (None, false),
        }
        Ok(record)
    }

    /// Returns the record of a volume, made up for one that has none.
    ///
    /// # Errors
    /// The volume does not exist, its record is invalid, or a system call failed.
    pub(crate) fn images(&self, vdi: VdiId) -> Result<Vec<String>, SrError> {
        let record = self.resolved(self.known(vdi)?)?;
        Ok(record.images.iter().map(ToString::to_string).collect())
    }

    pub(super) fn known(&self, vdi: VdiId) -> Result<Record, SrError> {
        match self.record(vdi)? {
            Some(mut record) => {
                // The file of a raw volume has its size, which grows without the record.
                if let Some(raw) = record.top().and_then(ImageName::unrecorded) {
                    record.bytes = self.unrecorded(raw)?.virtual_bytes;
                }
                Ok(record)
            }
            None => {
                let Volume { virtual_bytes, read_only, .. } = self.unrecorded(vdi)?;
                let record = Record::new(vec![ImageName::raw(vdi.0)], virtual_bytes);
                Ok(Record { read_only, ..record })
            }
        }
    }

    /// Returns the volume of a record. `None` if it is incomplete or its images are not there.
    pub(super) fn recorded(&self, vdi: VdiId, record: Record) -> Result<Option<Volume>, SrError> {
        let record = self.resolved(record)?;
        if record.incomplete || record.reset_of.is_some() {
            return Ok(None);
        }
        let mut found = None;
        for image in record.images.iter().rev() {
            let name = image.to_string();
            match statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => match volume(vdi, &stat) {
                    Some(one) => found = Some(one),
                    // A link, or a directory.
                    None => return Ok(None),
                },
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(self.os("look at", &name, error)),
            }
        }
        let is_raw = record.top().is_some_and(|top| top.unrecorded().is_some());
        Ok(found.map(|top| Volume {
            virtual_bytes: if is_raw { top.virtual_bytes } else { record.bytes },
            read_only: top.read_only || record.read_only,
            snapshot_of: record.snapshot_of,
            resets: record.reset_to.is_some(),
            names: Some(record.names),
            format: record.images.last().map_or(ImageFormat::Raw, |lowest| lowest.format()),
            ..top
        }))
    }

    /// Names `layer`, a new image that goes over the images of a volume. Returns the present images,
    /// top first.
    ///
    /// `served` is the file name of the image that a datapath writes for the volume, if one does.
    ///
    /// # Errors
    /// The volume does not exist, is read-only, or has too many images, or a system call failed.
    pub(crate) fn prepare_layer(
        &self,
        vdi: VdiId,
        layer: Uuid,
        served: Option<&str>,
    ) -> Result<Vec<String>, SrError> {
        let _lock = self.lock_records();
        let mut record = self.settled(self.known(vdi)?, served)?;
        if record.read_only {
            return Err(refused(format!("volume {vdi} is never written")));
        }
        if record.images.len() >= MAX_IMAGES {
            return Err(refused(format!(
                "volume {vdi} has {MAX_IMAGES} images, the most that are possible: destroy snapshots \
                 and wait until their images are merged, or copy it (vdi-copy), and use the copy"
            )));
        }
        self.check_room(LAYER_BYTES)?;
        let top = record.top().ok_or(SrError::NoVolume(vdi))?;
        record.next = Some(top.layer(layer));
        self.put_record(vdi, &record)?;
        Ok(record.images.iter().map(ToString::to_string).collect())
    }

    /// Records that the new layer of a volume is its top now. It is if a datapath writes it
    /// (`served`), or if none serves the volume and the image exists. Otherwise removes the image. A
    /// volume without a new layer stays as it is.
    ///
    /// # Errors
    /// The new layer is not in use, the volume does not exist, or a system call failed.
    pub(crate) fn settle_layer(&self, vdi: VdiId, served: Option<&str>) -> Result<Volume, SrError> {
        let _lock = self.lock_records();
        let Some(before) = self.record(vdi)? else { return self.unrecorded(vdi) };
        let mut record = self.settled(before.clone(), served)?;
        let is_pushed = record.images != before.images;
        if is_pushed {
            // A volume without a layer of its own would write an image that others have.
            record.incomplete = false;
            let state = || record.top().map(|top| self.state(top)).transpose();
            record.new_top = if served.is_none() { state()? } else { None };
        }
        self.store_record(vdi, &record)?;
        self.remove_replaced(vdi, record)?;
        if before.next.is_some() && !is_pushed {
            return Err(refused(format!("the new image of volume {vdi} is not in use; try again")));
        }
        self.volume(vdi)
    }

    /// Stores the names of a volume.
    ///
    /// # Errors
    /// The volume does not exist, the names are too long, or a system call failed.
    pub(crate) fn set_names(&self, vdi: VdiId, names: Names) -> Result<(), SrError> {
        if !names.are_short() {
            let [label, description] = Names::MAX_BYTES;
            let why = format!(
                "names of at most {label} bytes and descriptions of {description} are stored"
            );
            return Err(SrError::Config { key: "name_label".into(), why });
        }
        let _lock = self.lock_records();
        // Its images may be missing, too.
        self.volume(vdi)?;
        let record = self.known(vdi)?;
        if record.names == names {
            return Ok(());
        }
        self.store_record(vdi, &Record { names, ..record })
    }

    /// Stores a record, unless it says nothing that its one raw image does not say.
    fn store_record(&self, vdi: VdiId, record: &Record) -> Result<(), SrError> {
        let is_writable = Record::new(vec![ImageName::raw(vdi.0)], record.bytes);
        if *record != is_writable {
            return self.put_record(vdi, record);
        }
        self.remove(&record_name(vdi))?;
        self.settle()
    }

    /// Decides about `next`.
    fn settled(&self, mut record: Record, served: Option<&str>) -> Result<Record, SrError> {
        let Some(next) = record.next else { return Ok(record) };
        let name = next.to_string();
        match served {
            Some(served) if served == name => record.push_next(),
            Some(_) => {
                self.remove(&name)?;
                (record.next, record.resets) = (None, false);
            }
            None => record = self.resolved(record)?,
        }
        Ok(record)
    }

    /// Adds a volume over images of another one. A snapshot is read-only, and has the images below
    /// the top. Another volume is incomplete until its layer is settled; it has the images below a
    /// top that was never written, or all images of a read-only volume.
    ///
    /// # Errors
    /// The other volume does not exist or has no such images, or a system call failed.
    pub(crate) fn share_images(
        &self,
        vdi: VdiId,
        of: VdiId,
        snapshot: Option<i64>,
    ) -> Result<Option<Volume>, SrError> {
        let _lock = self.lock_records();
        if self.record(vdi)?.is_some() || self.has(&ImageName::raw(vdi.0).to_string())? {
            return Err(refused(format!("volume {vdi} exists")));
        }
        let source = self.resolved(self.known(of)?)?;
        let mut images = source.images.clone();
        if !source.read_only {
            images.remove(0);
        }
        if images.is_empty() || source.next.is_some() {
            return Err(refused(format!("volume {of} has no images to share yet")));
        }
        let record = Record {
            read_only: snapshot.is_some(),
            incomplete: snapshot.is_none(),
            snapshot_of: snapshot.map(|unix_seconds| SnapshotOf { vdi: of, unix_seconds }),
            ..Record::new(images, source.bytes)
        };
        self.copy_storage_blocks(vdi, of)?;
        if source.read_only && self.record(of)?.is_none() {
            // Without a record of its own, the raw image would be that of the new volume alone.
            self.put_record(of, &source)?;
        }
        self.put_record(vdi, &record)?;
        self.recorded(vdi, record)
    }

    /// Returns whether a clone can share the images of a volume as they are: it is never written, or
    /// its top is as new. No program may write it meanwhile.
    ///
    /// # Errors
    /// The volume does not exist, or a system call failed.
    pub(crate) fn can_share(&self, vdi: VdiId) -> Result<bool, SrError> {
        let record = self.resolved(self.known(vdi)?)?;
        let (Some(top), Some(new_top)) = (record.top(), record.new_top) else {
            return Ok(record.read_only);
        };
        Ok(record.read_only || record.next.is_none() && self.state(top)? == new_top)
    }

    /// Removes the record of a volume, and the images that no other record has.
    pub(super) fn destroy_recorded(&self, vdi: VdiId, record: Record) -> Result<(), SrError> {
        // What cannot be read would end the removal half-way.
        self.records(&self.names()?)?;
        self.merge_journal()?;
        let (name, removed) = (record_name(vdi), format!("{vdi}{}", record::REMOVED));
        self.rename(&name, &removed)?;
        self.settle()?;
        self.end_removal(vdi, record)
    }

    /// Removes what the renamed record of a volume names.
    fn end_removal(&self, vdi: VdiId, record: Record) -> Result<(), SrError> {
        self.remove_unused(&record.files().collect())?;
        self.remove(&format!("{vdi}{}", record::REMOVED))?;
        self.settle()?;
        record.reset_to.map_or(Ok(()), |point| self.remove_point(point))
    }

    /// Removes those of these images that no volume has.
    pub(super) fn remove_unused(&self, images: &BTreeSet<ImageName>) -> Result<(), SrError> {
        let records = self.records(&self.names()?)?;
        let used = records.values().flat_map(Record::used);
        let used: BTreeSet<_> = used.chain(self.merge_journal()?.images()).collect();
        for image in images.difference(&used) {
            self.remove(&image.to_string())?;
        }
        self.settle()
    }

    /// Removes volumes that a crash left incomplete.
    ///
    /// # Errors
    /// A record is invalid, or a system call failed.
    pub(crate) fn remove_incomplete(&self) -> Result<(), SrError> {
        let _lock = self.lock_records();
        self.finish_adoption()?;
        let names = self.names()?;
        for (vdi, record) in self.removed(&names)? {
            self.end_removal(vdi, record)?;
        }
        let records = self.records(&names)?;
        let is_point = |point: &VdiId, of: &VdiId| {
            records.get(of).is_some_and(|owner| owner.reset_to == Some(*point))
        };
        for (vdi, record) in &records {
            let is_left = record.reset_of.is_some_and(|of| !is_point(vdi, &of));
            if record.incomplete || is_left {
                self.destroy_recorded(*vdi, record.clone())?;
            } else {
                self.remove_replaced(*vdi, record.clone())?;
            }
        }
        Ok(())
    }

    pub(super) fn has(&self, name: &str) -> Result<bool, SrError> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.os("look at", name, error)),
        }
    }

    pub(super) fn state(&self, image: ImageName) -> Result<FileState, SrError> {
        let name = image.to_string();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.fd, &name, flags, Mode::empty());
        let file = std::fs::File::from(file.map_err(|error| self.os("open", &name, error))?);
        let metadata = file.metadata().map_err(|error| self.failed("read", &name, 0, error))?;
        let nanoseconds = metadata.mtime().saturating_mul(1_000_000_000);
        let modified_ns = nanoseconds.saturating_add(metadata.mtime_nsec());
        Ok(FileState { size: metadata.len(), modified_ns })
    }
}

/// Lock of the records of an SR.
pub(super) struct RecordLock<'a> {
    directory: BorrowedFd<'a>,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for RecordLock<'_> {
    fn drop(&mut self) {
        // The lock also ends when the directory is closed.
        let _unlocked = flock(self.directory, FlockOperation::Unlock);
    }
}

/// Returns the file name of a volume's record.
pub(super) fn record_name(vdi: VdiId) -> String {
    format!("{vdi}{}", record::SUFFIX)
}

pub(super) fn refused(why: String) -> SrError {
    SrError::Config { key: SNAPSHOT.into(), why }
}
