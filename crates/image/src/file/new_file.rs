//! A file that exists once it is complete.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};
use rustix::io::Errno;

/// Permissions of a new file, less the process's mask.
const MODE: Mode = Mode::from_raw_mode(0o666);
/// Beginning of the name of an incomplete file.
const INCOMPLETE: &str = ".new-";

/// Number of the next incomplete file of this process that has a name.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// New file. It gets its name when it is complete, so nothing has the name if the process dies before.
/// Where the storage has no files without names, it has another name meanwhile, which a crash leaves:
/// `.new-`, then numbers.
#[derive(Debug)]
pub struct NewFile {
    file: OwnedFd,
    path: PathBuf,
    /// Name of the incomplete file, if it has one.
    incomplete: Option<PathBuf>,
}

/// Returns the folder of a path.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl NewFile {
    /// Creates a file for reading and writing.
    ///
    /// # Errors
    /// The path exists, or the folder does not, or the storage fails.
    pub fn create(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(Errno::EXIST.into());
        }
        match open(folder_of(path), OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE, MODE) {
            Ok(file) => Ok(Self { file, path: path.into(), incomplete: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::create_named(path),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a file with a name of its own in the folder of `path`.
    fn create_named(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{INCOMPLETE}{}-{number}", std::process::id());
            let incomplete = folder_of(path).join(name);
            match open(&incomplete, flags, MODE) {
                Ok(file) => {
                    return Ok(Self { file, path: path.into(), incomplete: Some(incomplete) });
                }
                // A process with the same number has left it, or another host has it.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the file.
    pub fn fd(&self) -> &OwnedFd {
        &self.file
    }

    /// Makes the file durable and gives it its name, durably.
    ///
    /// # Errors
    /// The path exists by now, or the storage fails.
    pub fn publish(mut self) -> io::Result<()> {
        rustix::fs::fsync(&self.file)?;
        match &self.incomplete {
            None => {
                let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, unnamed, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
            }
            Some(incomplete) => {
                rename_new(incomplete, &self.path)?;
                self.incomplete = None;
            }
        }
        // If this fails, the caller does not know whether the name survives a crash of the host.
        File::open(folder_of(&self.path))?.sync_all()
    }
}

/// Renames a file to a free name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Network file systems do not support the flag. They have links.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            linkat(CWD, from, CWD, to, AtFlags::empty())?;
            std::fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(incomplete) = &self.incomplete {
            // The caller learns why the file is not complete.
            let _ = std::fs::remove_file(incomplete);
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
        let names = || {
            let names = folder.path().read_dir().unwrap();
            names.map(|one| one.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        // As on storage that has files without names, and on storage that has none.
        for create in [NewFile::create, NewFile::create_named] {
            drop(create(&path).unwrap());
            assert_eq!(names(), Vec::<String>::new());
            let file = create(&path).unwrap();
            rustix::io::write(file.fd(), b"content").unwrap();
            assert!(names().iter().all(|name| name.starts_with(INCOMPLETE)), "{:?}", names());
            file.publish().unwrap();
            assert_eq!(
                (names(), std::fs::read(&path).unwrap()),
                (vec!["a".into()], b"content".into())
            );
            assert_eq!(NewFile::create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            std::fs::remove_file(&path).unwrap();
            // Another file has got the name meanwhile.
            let file = create(&path).unwrap();
            std::fs::write(&path, "other").unwrap();
            assert_eq!(file.publish().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(
                (names(), std::fs::read(&path).unwrap()),
                (vec!["a".into()], b"other".into())
            );
            std::fs::remove_file(&path).unwrap();
        }
    }
}
