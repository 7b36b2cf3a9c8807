//! Image in a file or on a block device.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use super::{Connection, Version, changed};
use crate::SourceError;

pub(super) struct FileSource {
    file: File,
    version: Version,
}

impl FileSource {
    pub(super) fn open(path: &Path) -> Result<Self, SourceError> {
        let unreachable = |error: io::Error| {
            SourceError::Unreachable(format!("cannot open it: {error}; check the path"))
        };
        // The open of a FIFO would wait for its writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let mut file = opened.map_err(unreachable)?;
        let version = version(&mut file).map_err(unreachable)?;
        Ok(Self { file, version })
    }

    /// Returns the file, with the version of its image.
    pub(super) fn into_parts(self) -> (File, Version) {
        (self.file, self.version)
    }
}

fn version(file: &mut File) -> io::Result<Version> {
    let found = file.metadata()?;
    let kind = found.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("it is neither a file nor a block device"));
    }
    let size = file.seek(SeekFrom::End(0))?;
    // Opening a device changes its times.
    let stamp = match kind.is_block_device() {
        true => format!("device {}", found.rdev()),
        false => format!("{} {} {}", found.ino(), found.mtime(), found.mtime_nsec()),
    };
    Ok(Version { size, stamp })
}

impl Connection for FileSource {
    fn version(&self) -> &Version {
        &self.version
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let read = self.file.read_exact_at(out, offset);
        // A writer changes the time before the data.
        let now = version(&mut self.file)
            .map_err(|error| SourceError::Unreachable(format!("cannot inspect it: {error}")))?;
        if now != self.version {
            return Err(changed("its file was written to"));
        }
        read.map_err(|error| SourceError::Failed(format!("cannot read it: {error}")))
    }
}
