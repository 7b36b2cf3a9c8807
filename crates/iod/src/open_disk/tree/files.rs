//! Files of a tree.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use disk::{Disk as _, DiskError, FileDisk, FileIdentity, FileOptions, OnFull, open_image};
use image::{ImageError, PlainFile};
use mapped::VhdHead;
use model::spec::FileRef;
use serde::{Deserialize, Serialize};

use super::super::{OpenError, fenced, options};
use super::{TreeOpener, signature};

/// Opened file of a tree.
#[derive(Clone, Debug)]
pub struct TreeFile {
    /// Path or number of the file in the spec.
    pub name: FileRef,
    /// The file as a disk.
    pub disk: Arc<FileDisk>,
    /// Identity of the file or device.
    pub identity: FileIdentity,
}

/// State of a file that another process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileState {
    /// Size in bytes as the other process uses it.
    pub(crate) size: u64,
    /// Size of its blocks in bytes.
    pub(crate) block_size: u32,
    /// True if a flush has failed, so that every later flush fails.
    pub(crate) lost: bool,
}

/// Use of a file of a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// The file is the disk: its first `size` bytes at most.
    Disk { size: u64 },
    /// The file contains an image with metadata.
    Container,
    /// The file contains what an overlay does not have in memory. Its size means nothing.
    Overflow,
}

/// Alignment of reads that is enough for direct I/O on every storage.
const MAGIC_ALIGNMENT: usize = 4096;

impl TreeOpener<'_> {
    /// Opens the next file.
    pub(super) fn open_file(
        &mut self,
        name: &FileRef,
        writable: bool,
        role: Use,
    ) -> Result<Arc<FileDisk>, OpenError> {
        if let Some(reused) = self.sources.reused.iter().find(|file| file.name == *name) {
            if writable && reused.disk.geometry().read_only {
                return Err(OpenError::ReadOnlyFile { name: name.clone() });
            }
            let reused = reused.clone();
            self.tree.files.push(reused.clone());
            return Ok(reused.disk);
        }
        let mut options = options(self.spec, label(name), !writable);
        if !matches!(role, Use::Disk { .. }) {
            // The map waits for space itself, so that nothing that waits keeps space from being
            // freed. Blocks are the guest's business, not the file's.
            (options.on_full, options.block_size) = (OnFull::Error, None);
        }
        let disk = match (self.open_files.next(), name) {
            (Some((fd, state)), _) => {
                let options = FileOptions { block_size: Some(state.block_size), ..options };
                let size = match role {
                    // A reset has perhaps made it smaller.
                    Use::Overflow => overlay::HEADER_BYTES as u64,
                    Use::Disk { .. } | Use::Container => state.size,
                };
                FileDisk::adopt(options, fd, size, state.lost)?
            }
            (None, FileRef::Path(_)) => match role {
                Use::Disk { size } => FileDisk::reopen(options, size).map_err(odd_size(name))?,
                Use::Container | Use::Overflow => FileDisk::open_container(options, None)?,
            },
            (None, FileRef::Fd { fd }) => {
                let count = self.sources.files.len();
                let missing = || OpenError::NotHandedIn { name: name.clone(), count };
                let handed_in = self.sources.files.get(fd).ok_or_else(missing)?;
                match role {
                    Use::Disk { size } => FileDisk::reopen_fd(options, handed_in.as_fd(), size)?,
                    Use::Container | Use::Overflow => {
                        FileDisk::open_container(options, Some(handed_in.as_fd()))?
                    }
                }
            }
        };
        let disk = Arc::new(fenced(disk, self.spec));
        let identity = disk.identity()?;
        self.tree.notes.extend(self.tree.storage_disks.schedule(&disk, name));
        self.tree.files.push(TreeFile { name: name.clone(), disk: Arc::clone(&disk), identity });
        Ok(disk)
    }

    /// Reads the footer of a VHD of the tree.
    pub(super) fn vhd_head(&self, name: &FileRef) -> Result<VhdHead, OpenError> {
        let is_it = |file: &&TreeFile| file.name == *name;
        let known = self.tree.files.iter().chain(&self.sources.reused).find(is_it);
        let fd = match (known, self.open_files.as_slice().first(), name) {
            (Some(file), ..) => Arc::clone(file.disk.handover().0),
            (None, Some((fd, _)), _) => Arc::new(duplicate(fd.as_fd(), name)?),
            (None, None, FileRef::Path(path)) => Arc::new(open_image(path, true)?),
            (None, None, FileRef::Fd { fd }) => {
                let count = self.sources.files.len();
                let missing = || OpenError::NotHandedIn { name: name.clone(), count };
                Arc::new(duplicate(self.sources.files.get(fd).ok_or_else(missing)?.as_fd(), name)?)
            }
        };
        let file = PlainFile::direct(fd, MAGIC_ALIGNMENT).map_err(ImageError::io("open", 0));
        let head = file.and_then(VhdHead::read);
        head.map_err(|source| OpenError::Image { name: name.clone(), source })
    }

    /// Refuses a tree with one file under two names: it would change below itself.
    pub(super) fn refuse_same_file(&self) -> Result<(), OpenError> {
        for (at, file) in self.tree.files.iter().enumerate() {
            let above =
                self.tree.files.iter().take(at).find(|above| above.identity == file.identity);
            if let Some(above) = above {
                let (first, second) = (above.name.clone(), file.name.clone());
                return Err(OpenError::SameFile { first, second });
            }
        }
        Ok(())
    }
}

/// Adds to the error of an odd size what the file begins like: images with metadata have such sizes.
fn odd_size(name: &FileRef) -> impl Fn(DiskError) -> OpenError {
    move |source| match (&source, signature::container(name)) {
        (DiskError::OddSize { .. }, Some(advice)) => {
            OpenError::NoRawImage { name: name.clone(), advice }
        }
        _ => source.into(),
    }
}

fn duplicate(fd: BorrowedFd<'_>, name: &FileRef) -> Result<OwnedFd, OpenError> {
    Ok(fd.try_clone_to_owned().map_err(DiskError::os("duplicate", label(name)))?)
}

/// Returns the path of a file, or the name of a descriptor in its place.
pub(crate) fn label(name: &FileRef) -> PathBuf {
    match name {
        FileRef::Path(path) => path.clone(),
        FileRef::Fd { .. } => name.to_string().into(),
    }
}
