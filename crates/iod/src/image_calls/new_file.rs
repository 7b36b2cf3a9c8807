//! A file that exists once it is complete.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::PlainFile;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, linkat, open};
use rustix::io::Errno;

/// Permissions of a new file, less the process's mask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// New file. It gets its name when it is complete, so nothing is left if the process dies before.
/// Where the storage has no files without names, it has its name from the beginning, and loses it
/// on drop.
#[derive(Debug)]
pub(super) struct NewFile {
    file: OwnedFd,
    path: PathBuf,
    /// True while the file has its name and is not complete.
    is_named: bool,
}

/// Returns the folder of a path.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Alignment that is enough for direct I/O on every storage, in bytes.
pub(super) const DIRECT_BLOCK: usize = 4096;

/// Returns the file for reads and writes, without the page cache if `direct` and if that is possible.
pub(super) fn plain(file: OwnedFd, direct: bool) -> PlainFile {
    let set = || fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT);
    if direct && set().is_ok() {
        let file = Arc::new(file);
        return PlainFile::direct(Arc::clone(&file), DIRECT_BLOCK)
            .unwrap_or_else(|_| PlainFile::shared(file));
    }
    PlainFile::new(file)
}

impl NewFile {
    /// Creates a file for reading and writing.
    ///
    /// # Errors
    /// The path exists, or the folder does not, or the storage fails.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(Errno::EXIST.into());
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let (file, is_named) = match open(folder_of(path), flags | OFlags::TMPFILE, MODE) {
            Ok(file) => (file, false),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                (open(path, flags | OFlags::CREATE | OFlags::EXCL, MODE)?, true)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { file, path: path.into(), is_named })
    }

    /// Returns the file.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.file
    }

    /// Makes the file durable and gives it its name, durably.
    ///
    /// # Errors
    /// The path exists by now, or the storage fails.
    pub(super) fn publish(mut self) -> io::Result<()> {
        rustix::fs::fsync(&self.file)?;
        if !self.is_named {
            let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, unnamed, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
            self.is_named = true;
        }
        File::open(folder_of(&self.path))?.sync_all()?;
        self.is_named = false;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_named {
            // The caller learns why the file is not complete.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_complete_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let is_empty = || folder.path().read_dir().unwrap().next().is_none();
        drop(NewFile::create(&path).unwrap());
        assert!(is_empty());
        let file = NewFile::create(&path).unwrap();
        rustix::io::write(file.fd(), b"content").unwrap();
        let named =
            NewFile { file: file.fd().try_clone().unwrap(), path: path.clone(), is_named: true };
        file.publish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        assert_eq!(NewFile::create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        // As on storage that has no files without names.
        drop(named);
        assert!(is_empty());
    }
}
