//! Files of the cache directory. Ringway makes them for its own user only, and follows no symbolic link.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};
use tempfile::NamedTempFile;

/// Creates a directory with those above it, unless it exists.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a regular file for reading, and for writing if `writes`. Never waits for another process, as
/// the open of a FIFO would.
pub(crate) fn open(path: &Path, writes: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Opens a file for reading and writing, and notes its use: no other process removes it while it is open,
/// and its time of change is now.
pub(crate) fn open_used(path: &Path) -> io::Result<File> {
    loop {
        let file = open(path, true)?;
        // Without a lock, which some file systems do not have, no file is removed either.
        let _not_locked = retry_on_intr(|| flock(&file, FlockOperation::LockShared));
        // It may have been removed before it was locked.
        if file.metadata()?.nlink() > 0 {
            let _not_needed = file.set_modified(SystemTime::now());
            return Ok(file);
        }
    }
}

/// Removes a file that no process uses. Returns false if one does.
pub(crate) fn remove_unused(path: &Path) -> io::Result<bool> {
    let file = open(path, true)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // Removed under the lock, which goes with the file.
        Ok(()) => std::fs::remove_file(path).map(|()| true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads a file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    open(path, false)?.take(most + 1).read_to_end(&mut data)?;
    match data.len() as u64 > most {
        true => Err(io::Error::other(format!("it has more than {most} bytes"))),
        false => Ok(data),
    }
}

/// Creates a file beside `path`, under a name that no other file has. It goes if it is not renamed.
pub(crate) fn create_beside(path: &Path) -> io::Result<NamedTempFile> {
    let directory = path.parent().unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".ringway-").suffix(".new").tempfile_in(directory)
}

/// Writes a file. A reader finds the former content or all of the new one.
pub(crate) fn replace(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut new = create_beside(path)?;
    new.write_all(data)?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_for_the_own_user_only_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("a/b");
        create_directory(&directory).unwrap();
        create_directory(&directory).unwrap();
        let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        let path = directory.join("f");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!((read(&path, 3).unwrap(), mode(&path)), (b"two".to_vec(), 0o600));
        assert!(read(&path, 2).is_err(), "longer than allowed");
        let link = directory.join("link");
        symlink(&path, &link).unwrap();
        assert!(open(&link, true).is_err());
        // The new file takes the place of a link and leaves alone what the link names.
        replace(&link, b"other").unwrap();
        assert_eq!(read(&path, 3).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn a_fifo_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert!(open(&path, false).unwrap_err().to_string().contains("not a regular file"));
    }
}
