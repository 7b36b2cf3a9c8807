//! Journals of images: in memory that the keeper has, or in a file where there is no keeper.
//!
//! The file is `/run/ringway/journal-IDENTITY-BOOT`, or in the folder of the disk's socket if that
//! folder does not exist. It lives as long as a process serves the image. A process that is killed
//! leaves it, and the next one that serves the image makes durable what it says. It means nothing
//! after a restart of the host, so its name has the boot's number. All is done with the image
//! locked, so one process at a time looks at it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use disk::FileIdentity;
use image::ImageError;
use image::journal::{Cells, JournalError};
use mapped::{JOURNAL, JournalSource};
use memory::Mapping;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, fallocate, renameat_with};
use rustix::process::geteuid;

/// Folder of the journals, unless it does not exist.
const FOLDER: &str = "/run/ringway";
/// Number of this boot of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Permissions of others, which must have none.
const OTHERS: u32 = 0o077;

/// Journal of one image.
#[derive(Debug)]
pub(super) struct ImageJournal {
    /// Memory that outlives the process. `None`: the process makes a file.
    memory: Option<Arc<Mapping>>,
    folders: Vec<PathBuf>,
    /// Start of the file's name: it names the image.
    prefix: String,
    boot: String,
    /// File that this process has made, and the one that a former process left.
    made: Mutex<Option<PathBuf>>,
    former: Mutex<Option<PathBuf>>,
}

/// Returns the size of a journal in bytes.
pub(super) fn bytes() -> u64 {
    JOURNAL.cells().unwrap_or_default() as u64 * 8
}

impl ImageJournal {
    /// Of the image with this identity, of a disk with this socket, if it has one.
    ///
    /// # Errors
    /// The host does not tell its boot.
    pub(super) fn new(
        identity: FileIdentity,
        socket: Option<&Path>,
        memory: Option<Arc<Mapping>>,
    ) -> io::Result<Self> {
        let boot = fs::read_to_string(BOOT_ID)?.trim().to_owned();
        let beside = socket.map(|socket| match socket.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        });
        let folders = [Some(Path::new(FOLDER)), beside].into_iter().flatten();
        let folders = folders.map(Path::to_owned).collect();
        let FileIdentity { device, inode, born_ns } = identity;
        let prefix = format!("journal-{device:x}-{inode:x}-{:x}-", born_ns.unwrap_or(0));
        let (made, former) = Default::default();
        Ok(Self { memory, folders, prefix, boot, made, former })
    }

    fn name(&self) -> String {
        format!("{}{}", self.prefix, self.boot)
    }

    /// Makes a file in the first folder where that is possible.
    fn make(&self) -> Result<(PathBuf, Mapping), JournalError> {
        let mut causes = Vec::new();
        for folder in &self.folders {
            match self.make_in(folder) {
                Ok(made) => return Ok(made),
                Err(error) => causes.push(format!("{}: {error}", folder.display())),
            }
        }
        let causes = causes.join("; ");
        let problem = format!(
            "no journal can be made ({causes}); make {FOLDER} writable for this user, or run the \
             program with --supervise"
        );
        Err(JournalError::Memory { problem })
    }

    fn make_in(&self, folder: &Path) -> io::Result<(PathBuf, Mapping)> {
        self.remove_outdated(folder)?;
        let path = folder.join(self.name());
        // A file has its size before it has its name: a shorter one is not ours.
        let new = path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&new)?;
        let made = (|| {
            // Reserved, because an access to memory without storage would end the process.
            fallocate(&file, FallocateFlags::empty(), 0, bytes())?;
            let mapping = Mapping::file(file.as_fd(), bytes()).map_err(io::Error::other)?;
            renameat_with(rustix::fs::CWD, &new, rustix::fs::CWD, &path, RenameFlags::NOREPLACE)?;
            Ok(mapping)
        })();
        if made.is_err() {
            // The error says why.
            let _ = fs::remove_file(&new);
        }
        made.map(|mapping| (path, mapping))
    }

    /// Removes journals of the image from before the host started.
    fn remove_outdated(&self, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_ours = name.to_str().is_some_and(|name| name.starts_with(&self.prefix));
            if is_ours && *name != *self.name() {
                tracing::info!("removing an outdated journal, {}", entry.path().display());
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Opens the file that a former process left in a folder.
    fn open_in(&self, folder: &Path) -> Result<Option<(PathBuf, Mapping)>, JournalError> {
        let path = folder.join(self.name());
        let mut options = OpenOptions::new();
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let opened = options.read(true).write(true).custom_flags(flags).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(unusable(&path, &error)),
        };
        let checked = check(&file)
            .and_then(|()| Mapping::file(file.as_fd(), bytes()).map_err(|error| error.to_string()));
        checked
            .map(|mapping| Some((path.clone(), mapping)))
            .map_err(|cause| unusable(&path, &cause))
    }
}

/// Checks that this user alone can have written a journal.
fn check(file: &File) -> Result<(), String> {
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is no regular file".into());
    }
    if found.uid() != geteuid().as_raw() {
        return Err(format!("user {} owns it, and this process runs as another one", found.uid()));
    }
    if found.mode() & OTHERS != 0 || found.nlink() != 1 {
        return Err("other users may write it, or it has another name".into());
    }
    if found.len() != bytes() {
        return Err(format!("it has {} bytes, a journal has {}", found.len(), bytes()));
    }
    Ok(())
}

fn unusable(path: &Path, cause: &impl std::fmt::Display) -> JournalError {
    let problem = format!(
        "a process that was killed left the journal {0}, which cannot be used: {cause}; remove it \
         if the writes of that process that were never flushed may be lost: rm {0}",
        path.display()
    );
    JournalError::Memory { problem }
}

impl JournalSource for ImageJournal {
    fn open(self: Arc<Self>) -> Result<Cells, JournalError> {
        if let Some(memory) = &self.memory {
            return Ok(Arc::clone(memory) as Cells);
        }
        let (path, mapping) = self.make()?;
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
        Ok(Arc::new(mapping))
    }

    fn former(&self) -> Result<Option<Cells>, JournalError> {
        for folder in &self.folders {
            if let Some((path, mapping)) = self.open_in(folder)? {
                tracing::info!("a process that was killed left the journal {}", path.display());
                *self.former.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
                return Ok(Some(Arc::new(mapping)));
            }
        }
        Ok(None)
    }

    fn refusal(&self, cause: &ImageError) -> JournalError {
        let former = self.former.lock().unwrap_or_else(PoisonError::into_inner).clone();
        unusable(&former.unwrap_or_default(), cause)
    }

    fn remove_former(&self) -> Result<(), JournalError> {
        let former = self.former.lock().unwrap_or_else(PoisonError::into_inner).take();
        let removed = former.map_or(Ok(()), fs::remove_file);
        let problem = |error| format!("the journal of a former process cannot be removed: {error}");
        removed.map_err(|error| JournalError::Memory { problem: problem(error) })
    }

    fn close(&self) {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = made.map(fs::remove_file) {
            tracing::warn!("the journal of an image cannot be removed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::Ordering;

    use super::*;

    const IDENTITY: FileIdentity = FileIdentity { device: 1, inode: 2, born_ns: Some(3) };

    fn journal(folder: &Path) -> Arc<ImageJournal> {
        let mut journal = ImageJournal::new(IDENTITY, Some(&folder.join("s")), None).unwrap();
        journal.folders.remove(0);
        Arc::new(journal)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_journal_lives_as_long_as_its_process_and_is_found_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let first = journal(folder.path());
        assert!(first.former().unwrap().is_none());
        let cells = Arc::clone(&first).open().unwrap();
        (*cells).as_ref()[7].store(77, Ordering::Relaxed);
        assert_eq!(names(folder.path()), [first.name()]);
        let mode = fs::metadata(folder.path().join(first.name())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // The process is killed.
        drop(cells);
        let next = journal(folder.path());
        let found = next.former().unwrap().unwrap();
        assert_eq!((*found).as_ref()[7].load(Ordering::Relaxed), 77);
        next.remove_former().unwrap();
        assert!(next.former().unwrap().is_none());
        drop(Arc::clone(&next).open().unwrap());
        next.close();
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn a_journal_from_before_the_host_started_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let journal = journal(folder.path());
        fs::write(folder.path().join(format!("{}former-boot", journal.prefix)), "x").unwrap();
        fs::write(folder.path().join("journal-1-3-3-former-boot"), "x").unwrap();
        assert!(journal.former().unwrap().is_none());
        drop(Arc::clone(&journal).open().unwrap());
        let mut expected = vec![journal.name(), "journal-1-3-3-former-boot".into()];
        expected.sort();
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn a_journal_that_is_not_ours_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let journal = journal(folder.path());
        let path = folder.path().join(journal.name());
        let refused = |reason: &str| {
            let error = journal.former().err().unwrap().to_string();
            assert!(error.contains(reason) && error.contains("; remove it if"), "{error}");
            fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
        };
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        refused("has 5 bytes");
        File::create(&path).unwrap().set_len(bytes()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        refused("other users may write it");
        symlink("/etc/passwd", &path).unwrap();
        refused("symbolic links");
        fs::create_dir(&path).unwrap();
        refused("directory");
    }

    #[test]
    fn without_a_folder_the_error_says_what_to_do() {
        let mut journal = ImageJournal::new(IDENTITY, Some(Path::new("s")), None).unwrap();
        journal.folders = vec!["/nowhere".into()];
        let error = Arc::new(journal).open().err().unwrap().to_string();
        assert!(
            error.contains("/nowhere: No such file") && error.contains("--supervise"),
            "{error}"
        );
    }
}
