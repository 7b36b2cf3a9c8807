//! Files of a directory: read, created atomically, removed.

use std::fs::File;
use std::io;

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, RenameFlags, fsync, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::directory::{SrDirectory, location, os};
use super::marker::{MARKER, Marker};
use crate::sr::SrError;

/// Prefix of incomplete files.
pub(super) const NEW: &str = ".new-";
/// Longest marker that is read, in bytes.
const MAX_MARKER_BYTES: usize = 4096;

impl SrDirectory<'_> {
    pub(super) fn marker(&self) -> Result<Option<Marker>, SrError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match openat(&self.fd, MARKER, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.os("open", MARKER, error)),
        };
        let mut bytes = [0; MAX_MARKER_BYTES];
        let read = rustix::io::read(&fd, &mut bytes);
        let read = read.map_err(|error| self.os("read", MARKER, error))?;
        let text = bytes.get(..read).unwrap_or_default();
        let marker = Marker::parse(text);
        marker.map(Some).map_err(|why| location(format!("{}: {why}", self.place.display())))
    }

    /// Creates a file atomically, even if the host crashes.
    pub(super) fn put(
        &self,
        name: &str,
        bytes: u64,
        fill: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), SrError> {
        self.write(name, bytes, fill, |new| self.place_new(new, name))
    }

    /// Creates or replaces a file atomically, even if the host crashes.
    pub(super) fn replace(
        &self,
        name: &str,
        bytes: u64,
        fill: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), SrError> {
        self.write(name, bytes, fill, |new| Ok(renameat(&self.fd, new, &self.fd, name)?))
    }

    fn write(
        &self,
        name: &str,
        bytes: u64,
        fill: impl FnOnce(&File) -> io::Result<()>,
        place: impl FnOnce(&str) -> io::Result<()>,
    ) -> Result<(), SrError> {
        let new = format!("{NEW}{name}");
        // A crashed process may have left this file.
        self.remove(&new)?;
        self.crash_point(&new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let failed = |error| self.failed("make", name, bytes, error);
        let file = openat(&self.fd, &new, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| failed(error.into()))?);
        let filled = fill(&file).and_then(|()| file.sync_all());
        let placed = filled.and_then(|()| self.crash_point(name).map_err(io::Error::other));
        let placed = placed.and_then(|()| place(&new));
        if let Err(error) = placed {
            // If this fails, the next attach removes the file.
            let _left = self.remove(&new);
            return Err(failed(error));
        }
        self.settle()
    }

    /// Renames a file to a free name.
    fn place_new(&self, new: &str, name: &str) -> io::Result<()> {
        let (from, to) = (&self.fd, &self.fd);
        match renameat_with(from, new, to, name, RenameFlags::NOREPLACE) {
            // Network file systems do not support the flag. No other program creates files with
            // this name.
            Err(Errno::INVAL | Errno::NOSYS) => Ok(renameat(from, new, to, name)?),
            renamed => Ok(renamed?),
        }
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), SrError> {
        self.crash_point(name)?;
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.os("remove", name, error)),
        }
    }

    pub(super) fn rename(&self, name: &str, new: &str) -> Result<(), SrError> {
        self.crash_point(name)?;
        renameat(&self.fd, name, &self.fd, new).map_err(|error| self.os("rename", name, error))
    }

    /// Fails from the call on at which a test lets the process crash.
    #[cfg(test)]
    fn crash_point(&self, name: &str) -> Result<(), SrError> {
        match super::tests::crash::has_crashed() {
            true => Err(self.os("crash at", name, Errno::IO)),
            false => Ok(()),
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests fail here")]
    fn crash_point(&self, _name: &str) -> Result<(), SrError> {
        Ok(())
    }

    /// Syncs the entries of the directory to disk.
    pub(super) fn settle(&self) -> Result<(), SrError> {
        fsync(&self.fd).map_err(|error| os("write down", self.place, error.into()))
    }

    pub(super) fn names(&self) -> Result<Vec<String>, SrError> {
        Ok(self.all_names()?.0)
    }

    /// Returns the names of all files, and those that are not UTF-8 as far as they can be read. All
    /// names of this driver are ASCII.
    pub(super) fn all_names(&self) -> Result<(Vec<String>, Vec<String>), SrError> {
        let failed = |error: Errno| os("list", self.place, error.into());
        let (mut names, mut odd) = (Vec::new(), Vec::new());
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match entry.file_name().to_str() {
                Ok(name) => names.push(name.to_owned()),
                Err(_) => odd.push(entry.file_name().to_string_lossy().into_owned()),
            }
        }
        Ok((names, odd))
    }
}
