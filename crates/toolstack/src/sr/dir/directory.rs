//! SR in a directory. Every call may hang with the storage, so only workers use this module, not
//! the daemon.

use std::fs::DirBuilder;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use model::calibration::PROFILE_FILE;
use model::id::{SrId, VdiId};
use model::image::ImageFormat;
use model::spec::MAX_DISK_BYTES;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, statat};
use rustix::io::Errno;

use super::files::NEW;
use super::marker::{MARKER, Marker};
use super::record::{ImageName, Record};
use super::storage_blocks::STORAGE_BLOCKS;
pub(super) use crate::sr::file_system::os;
use crate::sr::file_system::space_at;
pub(super) use crate::sr::places::location;
use crate::sr::{Names, Space, SrError, Volume};

/// Unit of sizes, in bytes: the largest block size that a guest can get, so that a volume fits
/// every block size.
const UNIT_BYTES: u64 = 4096;
/// Least free space to create a volume. A new volume uses no space, but without this no guest could
/// write to it.
const LEAST_FREE_BYTES: u64 = 1 << 20;
/// Configuration key that errors about sizes name.
pub(super) const SIZE: &str = "virtual_size";

/// Open directory of an SR.
#[derive(Debug)]
pub(crate) struct SrDirectory<'a> {
    pub(super) fd: OwnedFd,
    pub(super) place: &'a Path,
}

impl<'a> SrDirectory<'a> {
    /// Creates an SR in a directory. Creates the directory if necessary.
    ///
    /// # Errors
    /// The directory contains another SR or volumes, or a system call failed.
    pub(crate) fn create(place: &'a Path, sr: SrId) -> Result<(), SrError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(place);
        made.map_err(|source| os("make", place, source))?;
        let sr_directory = Self::at(place)?;
        match sr_directory.marker()? {
            Some(marker) => return sr_directory.check(&marker, sr),
            None if !sr_directory.volumes()?.is_empty() => {
                let why = format!(
                    "{} has volumes but names no storage repository: take an empty directory",
                    place.display()
                );
                return Err(location(why));
            }
            None => {}
        }
        // The marker comes last, because it makes the directory an SR.
        sr_directory.remove(STORAGE_BLOCKS)?;
        sr_directory.put_storage_blocks(&[])?;
        let text = Marker::of(sr).text();
        sr_directory.put(MARKER, text.len().try_into().unwrap_or_default(), |mut file| {
            file.write_all(text.as_bytes())
        })
    }

    /// Opens the directory of an SR.
    ///
    /// # Errors
    /// The directory does not exist, or is not this SR's: for example, a mount point without its
    /// file system.
    pub(crate) fn open(place: &'a Path, sr: SrId) -> Result<Self, SrError> {
        let sr_directory = Self::at(place)?;
        match sr_directory.marker()? {
            Some(marker) => sr_directory.check(&marker, sr).map(|()| sr_directory),
            None => Err(sr_directory.vanished()),
        }
    }

    /// Returns the SR of the directory, if it has a marker.
    ///
    /// # Errors
    /// The directory does not exist, the marker is invalid, or a system call failed.
    pub(crate) fn probe(place: &'a Path) -> Result<Option<SrId>, SrError> {
        let Some(marker) = Self::at(place)?.marker()? else { return Ok(None) };
        let sr = marker.sr().map_err(|why| location(format!("{}: {why}", place.display())));
        sr.map(Some)
    }

    /// Removes the marker, the list of volumes and incomplete files. The directory and all other files stay.
    ///
    /// # Errors
    /// The directory contains volumes, or a system call failed.
    pub(crate) fn destroy(&self) -> Result<(), SrError> {
        {
            let _lock = self.lock_records();
            self.finish_adoption()?;
        }
        match self.volumes()?.len() {
            0 => {}
            volumes => return Err(SrError::NotEmpty { volumes }),
        }
        self.clean()?;
        self.clear_merge()?;
        self.remove(MARKER)?;
        self.remove(STORAGE_BLOCKS)?;
        self.remove(PROFILE_FILE)?;
        self.settle()
    }

    pub(super) fn at(place: &'a Path) -> Result<Self, SrError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(place, flags, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, place }),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NOTCONN | Errno::NODEV) => {
                Err(SrError::Vanished { path: place.into() })
            }
            Err(error) => Err(os("open", place, error.into())),
        }
    }

    /// Removes incomplete files of a crash.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn clean(&self) -> Result<(), SrError> {
        for name in self.names()?.iter().filter(|name| name.starts_with(NEW)) {
            self.remove(name)?;
        }
        Ok(())
    }

    /// Returns the space of the file system.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn space(&self) -> Result<Space, SrError> {
        space_at(&self.fd, self.place)
    }

    /// Returns one volume.
    ///
    /// # Errors
    /// It does not exist, its record is invalid, or a system call failed.
    pub(crate) fn volume(&self, vdi: VdiId) -> Result<Volume, SrError> {
        match self.record(vdi)? {
            Some(record) => self.recorded(vdi, record)?.ok_or(SrError::NoVolume(vdi)),
            None => self.unrecorded(vdi),
        }
    }

    /// Returns a volume that has no record: one raw file.
    pub(super) fn unrecorded(&self, vdi: VdiId) -> Result<Volume, SrError> {
        let name = name(vdi);
        match statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => volume(vdi, &stat).ok_or(SrError::NoVolume(vdi)),
            Err(Errno::NOENT) => Err(SrError::NoVolume(vdi)),
            Err(error) => Err(self.os("look at", &name, error)),
        }
    }

    /// Creates a sparse volume of zeroes. Does nothing if it exists with this size.
    ///
    /// # Errors
    /// It exists with another size, the size is invalid, or the space does not suffice.
    pub(crate) fn create_volume(&self, vdi: VdiId, bytes: u64) -> Result<Volume, SrError> {
        let bytes = whole_units(bytes)?;
        match self.volume(vdi) {
            Ok(volume) if volume.virtual_bytes == bytes => return Ok(volume),
            Ok(_) => return Err(self.os("make", &name(vdi), Errno::EXIST)),
            Err(SrError::NoVolume(_)) => {}
            Err(error) => return Err(error),
        }
        self.check_room(bytes)?;
        self.put(&name(vdi), bytes, |file| file.set_len(bytes))?;
        self.volume(vdi)
    }

    /// Removes a volume, and the images that only it has. Does nothing if it does not exist.
    ///
    /// # Errors
    /// A record is invalid, or a system call failed.
    pub(crate) fn destroy_volume(&self, vdi: VdiId) -> Result<(), SrError> {
        let _lock = self.lock_records();
        if let Some(record) = self.record(vdi)? {
            return self.destroy_recorded(vdi, record);
        }
        let records = self.records(&self.names()?)?;
        if !records.values().flat_map(Record::files).any(|image| image == ImageName::raw(vdi.0)) {
            self.remove(&name(vdi))?;
        }
        self.settle()
    }

    /// Checks that a volume of this size in bytes can be begun.
    ///
    /// # Errors
    /// The space does not suffice.
    pub(crate) fn check_room(&self, needed: u64) -> Result<(), SrError> {
        let free = self.free();
        if free < LEAST_FREE_BYTES { Err(SrError::Full { needed, free }) } else { Ok(()) }
    }

    fn free(&self) -> u64 {
        self.space().map_or(0, |space| space.total.saturating_sub(space.used))
    }

    fn check(&self, marker: &Marker, sr: SrId) -> Result<(), SrError> {
        marker.check(sr).map_err(|why| location(format!("{} {why}", self.place.display())))
    }

    fn vanished(&self) -> SrError {
        SrError::Vanished { path: self.place.into() }
    }

    pub(super) fn failed(
        &self,
        doing: &str,
        name: &str,
        needed: u64,
        source: io::Error,
    ) -> SrError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                SrError::Full { needed, free: self.free() }
            }
            _ => os(doing, &self.place.join(name), source),
        }
    }

    pub(super) fn os(&self, doing: &str, name: &str, error: Errno) -> SrError {
        os(doing, &self.place.join(name), error.into())
    }
}

/// Returns a volume, unless the file is not a regular one.
pub(super) fn volume(vdi: VdiId, stat: &Stat) -> Option<Volume> {
    let mode = stat.st_mode;
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return None;
    }
    let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
    Some(Volume {
        vdi,
        virtual_bytes: u64::try_from(stat.st_size).unwrap_or_default(),
        physical_bytes: blocks.saturating_mul(512),
        read_only: !Mode::from_raw_mode(mode).intersects(Mode::WUSR | Mode::WGRP | Mode::WOTH),
        snapshot_of: None,
        resets: false,
        names: Some(Names::default()),
        file_name: None,
        format: ImageFormat::Raw,
    })
}

/// Returns the file name of a volume.
pub(super) fn name(vdi: VdiId) -> String {
    ImageName::raw(vdi.0).to_string()
}

pub(super) fn whole_units(bytes: u64) -> Result<u64, SrError> {
    let whole = bytes.checked_next_multiple_of(UNIT_BYTES);
    whole.filter(|whole| (1..=MAX_DISK_BYTES).contains(whole)).ok_or_else(|| SrError::Config {
        key: SIZE.into(),
        why: format!("{bytes} bytes is not in 1 to {MAX_DISK_BYTES}"),
    })
}
