//! Adoption of foreign files: users put them into the folder, and they become volumes.
//!
//! The records of the new volumes have the new names of the files, so files and records change
//! together: the journal `.ringway-adopt` has both until all is done, and the next adoption or attach
//! goes on with it. No file is ever removed, and none is written.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};

use error_causes::error_chain;
use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use model::signature::Signature;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::directory::{SrDirectory, location, name as volume_name};
use super::record::{self, ImageName, Record};
use super::scan::ReadRecords;
use super::tree::record_name;
use crate::sr::SrError;
use crate::sr::file_system::other_image;
use crate::sr::foreign::{ForeignFile, ForeignImage, ForeignVolume, MAX_FOREIGN_FILES};

/// Name of the journal.
const JOURNAL: &str = ".ringway-adopt";
/// Format version of the journal.
const FORMAT: u32 = 1;
/// Longest journal that is read, in bytes: more than the most files need.
const MAX_BYTES: u64 = 64 << 20;

/// Longest reason that a scan reports for a volume, in characters.
const REASON_MAX: usize = 300;

/// Content of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Journal {
    format: u32,
    volumes: Vec<ForeignVolume>,
}

impl SrDirectory<'_> {
    /// Returns the files that belong to no volume, at most [`MAX_FOREIGN_FILES`], in the order of
    /// their names. Hidden files and folders are left out.
    ///
    /// # Errors
    /// The journal is invalid, or a system call failed.
    pub(crate) fn foreign_files(&self) -> Result<Vec<ForeignFile>, SrError> {
        let _lock = self.lock_records();
        self.finish_adoption()?;
        let (mut names, odd_names) = self.all_names()?;
        names.sort();
        let read = self.read_records(&names);
        let unnamed = |name| {
            let why = "its name is not UTF-8: rename the file".to_owned();
            ForeignFile { name, format: Err(why) }
        };
        let odd_names = odd_names.into_iter().filter(|name| !is_own(name));
        let mut found: Vec<_> = odd_names.take(MAX_FOREIGN_FILES).map(unnamed).collect();
        for name in names.into_iter().filter(|name| !is_own(name)) {
            if found.len() == MAX_FOREIGN_FILES {
                break;
            }
            if !is_known(&read.known, &name)
                && !is_doubtful(&read, &name)
                && let Some(format) = self.stated_format(&name)?
            {
                found.push(ForeignFile { name, format });
            }
        }
        Ok(found)
    }

    /// Returns the format that a name states. `None` for what is no file of a user.
    fn stated_format(&self, name: &str) -> Result<Option<Result<ImageFormat, String>>, SrError> {
        let stat = match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.os("look at", name, error)),
        };
        let format = name.rsplit_once('.').and_then(|(_, extension)| extension.parse().ok());
        let id = name.split_once('.').and_then(|(stem, _)| stem.parse().ok().map(VdiId));
        let exists = |id: VdiId| {
            Ok::<_, SrError>(self.has(&record_name(id))? || self.has(&volume_name(id))?)
        };
        if id.map_or(Ok(false), exists)? {
            return Ok(Some(Err("a disk with this UUID exists: rename the file".to_owned())));
        }
        let problem = match (FileType::from_raw_mode(stat.st_mode), format) {
            (FileType::RegularFile, Some(_)) if stat.st_nlink > 1 => {
                "it has another name, too (a hard link): a guest would write both"
            }
            (FileType::RegularFile, Some(format)) => {
                let refusal =
                    if format == ImageFormat::Raw { self.no_raw_file(name)? } else { None };
                return Ok(Some(refusal.map_or(Ok(format), Err)));
            }
            (FileType::RegularFile, None) => "its name does not end with .raw, .qcow2 or .vhd",
            (FileType::Symlink, Some(_)) => "it is a link",
            _ => return Ok(None),
        };
        Ok(Some(Err(problem.to_owned())))
    }

    /// Returns the reason why the file of a volume may be no raw image, whatever its name says. `None`
    /// if a guest could write it before, or it is gone.
    pub(super) fn no_raw_image(&self, name: &str) -> Option<String> {
        match self.other_image(name).transpose()? {
            Ok(signature) => Some(begins_like(signature, name)),
            Err(error) => Some(error_chain(&error).chars().take(REASON_MAX).collect()),
        }
    }

    /// Returns the reason why a file is no raw image, whatever its name says.
    fn no_raw_file(&self, name: &str) -> Result<Option<String>, SrError> {
        Ok(self.other_image(name)?.map(|signature| {
            let begins = begins_like(signature, name);
            format!(
                "{begins}. If it is a raw disk whose guest has written that, import it (xe \
                 vdi-import format=raw)"
            )
        }))
    }

    /// Returns the other image that a file begins like. `None` for one that is gone, too.
    fn other_image(&self, name: &str) -> Result<Option<Signature>, SrError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => std::fs::File::from(fd),
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(self.os("open", name, error)),
        };
        other_image(&file).map_err(|error| self.failed("read", name, 0, error))
    }

    /// Makes volumes of foreign files, and gives the files their new names.
    ///
    /// # Errors
    /// A file is gone or belongs to a volume by now, a volume exists, or a system call failed. Some
    /// volumes may exist then, each of them complete.
    pub(crate) fn adopt(&self, volumes: Vec<ForeignVolume>) -> Result<(), SrError> {
        let _lock = self.lock_records();
        self.finish_adoption()?;
        let read = self.read_records(&self.names()?);
        for volume in &volumes {
            let record = record_of(volume).map_err(location)?;
            let id = volume.vdi;
            let is_taken = self.has(&record_name(id))? || self.has(&volume_name(id))?;
            if is_taken || !volume.names.are_short() || volume.bytes != record.bytes {
                return Err(location(format!("volume {id} exists, or its name is long")));
            }
            for ForeignImage { from, to } in &volume.images {
                let is_used = is_own(from) || is_known(&read.known, from);
                if is_used
                    || is_doubtful(&read, from)
                    || !self.has(from)?
                    || (from != to && self.has(to)?)
                {
                    return Err(location(format!("{from} has changed: scan again")));
                }
            }
        }
        let journal = Journal { format: FORMAT, volumes };
        // Serialization of plain fields cannot fail.
        let text = serde_json::to_vec(&journal).unwrap_or_default();
        let bytes = text.len().try_into().unwrap_or_default();
        self.replace(JOURNAL, bytes, |mut file| file.write_all(&text))?;
        self.finish_adoption()
    }

    /// Ends the adoption that a former process has begun. The caller has locked the records.
    ///
    /// # Errors
    /// The journal is invalid, or a system call failed.
    pub(super) fn finish_adoption(&self) -> Result<(), SrError> {
        let Some(journal) = self.journal()? else { return Ok(()) };
        for volume in &journal.volumes {
            let record = record_of(volume).map_err(|why| self.bad_journal(&why))?;
            if self.record(volume.vdi)?.is_none() {
                self.put_record(volume.vdi, &record)?;
            }
        }
        let images: BTreeSet<_> = journal.volumes.iter().flat_map(|one| &one.images).collect();
        for ForeignImage { from, to } in images {
            if from != to && self.has(from)? && !self.has(to)? {
                self.rename(from, to)?;
            }
        }
        self.settle()?;
        self.remove(JOURNAL)?;
        self.settle()
    }

    fn journal(&self) -> Result<Option<Journal>, SrError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, JOURNAL, flags, Mode::empty()) {
            Ok(fd) => std::fs::File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.os("open", JOURNAL, error)),
        };
        let mut text = Vec::new();
        let read = file.take(MAX_BYTES).read_to_end(&mut text);
        read.map_err(|error| self.failed("read", JOURNAL, 0, error))?;
        let journal: Journal =
            serde_json::from_slice(&text).map_err(|error| self.bad_journal(&error.to_string()))?;
        match journal.format {
            FORMAT => Ok(Some(journal)),
            other => {
                let why = format!("it has format {other}, this version knows {FORMAT}");
                Err(self.bad_journal(&why))
            }
        }
    }

    fn bad_journal(&self, why: &str) -> SrError {
        let place = self.place.join(JOURNAL);
        location(format!("{}: {why}; restore this file from a backup", place.display()))
    }
}

/// Returns what a file begins like, and what to do if it is that.
fn begins_like(signature: Signature, name: &str) -> String {
    let to_raw = signature.to_raw(&name).unwrap_or_default();
    let title = signature.title();
    format!("it begins like {title}: give it the name of its format, or convert it (`{to_raw}`)")
}

/// Returns the record of a new volume, or the reason why there can be none.
fn record_of(volume: &ForeignVolume) -> Result<Record, String> {
    let parse = |image: &ForeignImage| {
        let ForeignImage { from, to } = image;
        let parsed = ImageName::parse(to).filter(|_| !from.contains('/') && !is_own(from));
        parsed.ok_or_else(|| format!("{from:?} cannot become {to:?}"))
    };
    let images: Vec<_> = volume.images.iter().map(parse).collect::<Result<_, _>>()?;
    let record = Record { names: volume.names.clone(), ..Record::new(images, volume.bytes) };
    // Serialization of plain fields cannot fail.
    Record::parse(&serde_json::to_vec(&record).unwrap_or_default())
}

/// Returns whether a file is an image of a volume. A raw image without a record is a volume.
fn is_known(known: &BTreeSet<ImageName>, name: &str) -> bool {
    let image = ImageName::parse(name);
    image.is_some_and(|image| image.unrecorded().is_some() || known.contains(&image))
}

/// Returns whether a file may be an image of a volume whose record cannot be read.
fn is_doubtful(read: &ReadRecords, name: &str) -> bool {
    !read.unreadable.is_empty() && ImageName::parse(name).is_some()
}

/// Returns whether a file is one of this driver's that is no image.
fn is_own(name: &str) -> bool {
    let of_volume = |suffix| {
        let id = name.strip_suffix(suffix);
        id.is_some_and(|id| id.parse::<Uuid>().is_ok_and(|one| one.to_string() == id))
    };
    name.is_empty()
        || name.starts_with('.')
        || of_volume(record::SUFFIX)
        || of_volume(record::REMOVED)
}
