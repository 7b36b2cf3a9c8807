//! Calls on file systems of SRs. They may hang with the storage, so only workers make them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use model::signature::{HEAD_BYTES, MARK, Signature};

use super::{Space, SrError};

/// Returns the space of the file system of the directory `path`.
///
/// # Errors
/// The directory cannot be opened or measured.
pub(super) fn space(path: &Path) -> Result<Space, SrError> {
    let directory = File::open(path).map_err(|error| os("open", path, error))?;
    space_at(&directory, path)
}

/// Returns the space of the file system of an open directory.
///
/// # Errors
/// The system call fails.
pub(super) fn space_at(directory: impl AsFd, path: &Path) -> Result<Space, SrError> {
    let found = rustix::fs::fstatvfs(directory);
    let found = found.map_err(|error| os("measure", path, error.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let (total, free) = (bytes(found.f_blocks), bytes(found.f_bfree));
    Ok(Space { total, used: total.saturating_sub(free), caches: None })
}

/// Returns what a raw file begins like, if that is another image, unless a guest could write it before.
///
/// # Errors
/// The file cannot be read.
pub(super) fn other_image(file: &File) -> io::Result<Option<Signature>> {
    // The mark comes first: a scan reads no data of the disks that guests wrote.
    if rustix::fs::fgetxattr(file, MARK, &mut [0_u8; 8][..]).is_ok() {
        return Ok(None);
    }
    let mut head = [0; HEAD_BYTES];
    let read = file.read_at(&mut head, 0)?;
    Ok(head.get(..read).and_then(Signature::of).filter(|found| found.is_image()))
}

/// Returns the names of the files of a directory. Skips names that are no text: nobody could type them.
///
/// # Errors
/// The directory is gone or cannot be read.
pub(super) fn names(directory: &Path) -> Result<Vec<String>, SrError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            SrError::Vanished { path: directory.into() }
        }
        _ => os("list", directory, source),
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// Returns the error of a system call on a path.
pub(super) fn os(doing: &str, path: &Path, source: io::Error) -> SrError {
    SrError::Os { what: format!("cannot {doing} {}", path.display()), source }
}
