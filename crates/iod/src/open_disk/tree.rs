//! Opening of a spec's tree: the only code that turns nodes into disks.
//!
//! Only the top file of a tree is written to. A window passes this on to its child, because it
//! stores nothing itself. A file below a qcow2 image is opened read-only and takes QEMU's lock for
//! readers. Each file has the disk's fence.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use disk::{Disk, FileDisk, FileIdentity, FileOptions, MemoryDisk, NullDisk, Window};
use model::spec::{Backend, BlockSize, DiskSpec, FileRef};
use serde::{Deserialize, Serialize};

use super::{OpenError, Opened, fenced, in_blocks, options};

/// Descriptors from which a disk is opened, beside the paths of its spec.
#[derive(Debug, Default)]
pub struct Sources {
    /// Bytes of the tree's memory disk, if a former process has made them.
    pub memory: Option<OwnedFd>,
    /// Files that were handed in, by the numbers that the spec gives them.
    pub files: BTreeMap<u32, OwnedFd>,
}

/// Opened file of a tree.
#[derive(Debug)]
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

/// Opener of one tree.
pub(super) struct TreeOpener<'a> {
    spec: &'a DiskSpec,
    sources: Sources,
    /// Open files of another process, top first: one for each file of the tree, or none at all.
    open_files: std::vec::IntoIter<(OwnedFd, FileState)>,
    files: Vec<TreeFile>,
    memory: Option<Arc<OwnedFd>>,
}

impl<'a> TreeOpener<'a> {
    /// Creates an opener that opens all files itself.
    pub(super) fn new(spec: &'a DiskSpec, sources: Sources) -> Self {
        Self::of_open_files(spec, sources, Vec::new())
    }

    /// Creates an opener that takes over the open files of another process, top first.
    pub(super) fn of_open_files(
        spec: &'a DiskSpec,
        sources: Sources,
        open_files: Vec<(OwnedFd, FileState)>,
    ) -> Self {
        let open_files = open_files.into_iter();
        Self { spec, sources, open_files, files: Vec::new(), memory: None }
    }

    /// Opens the tree. If its top is a leaf, the guest sees at most `told` bytes of it.
    pub(super) fn open(mut self, told: Option<u64>) -> Result<Opened, OpenError> {
        let spec = self.spec;
        let disk = self.node(&spec.backend, !spec.read_only, told)?;
        let disk = in_blocks(disk, spec.block_bytes());
        self.refuse_same_file()?;
        let Self { sources, files, memory, .. } = self;
        let mut handed_in = sources.files;
        handed_in.retain(|fd, _| spec.backend.files().any(|name| *name == FileRef::Fd { fd: *fd }));
        Ok(Opened { disk, memory, files, handed_in })
    }

    /// Opens a node with all below it.
    fn node(
        &mut self,
        node: &Backend,
        writable: bool,
        told: Option<u64>,
    ) -> Result<Arc<dyn Disk>, OpenError> {
        let block_size = self.spec.block_bytes().unwrap_or(BlockSize::DEFAULT_BYTES);
        Ok(match node {
            Backend::File(name) => self.file(name, writable, told.unwrap_or(u64::MAX))?,
            Backend::Null(size) => {
                Arc::new(NullDisk::new(told.unwrap_or(*size), block_size, !writable))
            }
            Backend::Memory(size) => {
                let disk = match self.sources.memory.take() {
                    Some(preserved) => MemoryDisk::adopt(preserved, block_size, !writable)?,
                    None => MemoryDisk::new(*size, block_size, !writable)?,
                };
                self.memory = Some(Arc::clone(disk.file()));
                Arc::new(disk)
            }
            Backend::Raw { child, offset, size } => {
                let child = self.node(child, writable, None)?;
                Arc::new(Window::new(child, *offset, *size)?)
            }
            Backend::Qcow2 { file, backing } => self.qcow2(file, backing.as_deref(), writable)?,
        })
    }

    /// Opens a qcow2 image: its file with [`Self::file`], then its backing with [`Self::node`],
    /// read-only.
    fn qcow2(
        &mut self,
        file: &FileRef,
        _backing: Option<&Backend>,
        _writable: bool,
    ) -> Result<Arc<dyn Disk>, OpenError> {
        Err(OpenError::Qcow2 { name: file.clone() })
    }

    /// Opens the next file, of which at most `size` bytes are used.
    fn file(
        &mut self,
        name: &FileRef,
        writable: bool,
        size: u64,
    ) -> Result<Arc<FileDisk>, OpenError> {
        let options = options(self.spec, label(name), !writable);
        let disk = match (self.open_files.next(), name) {
            (Some((fd, state)), _) => {
                let options = FileOptions { block_size: Some(state.block_size), ..options };
                FileDisk::adopt(options, fd, state.size, state.lost)?
            }
            (None, FileRef::Path(_)) => FileDisk::reopen(options, size)?,
            (None, FileRef::Fd { fd }) => {
                let count = self.sources.files.len();
                let missing = || OpenError::NotHandedIn { name: name.clone(), count };
                let handed_in = self.sources.files.get(fd).ok_or_else(missing)?;
                FileDisk::reopen_fd(options, handed_in.as_fd(), size)?
            }
        };
        let disk = Arc::new(fenced(disk, self.spec));
        let identity = disk.identity()?;
        self.files.push(TreeFile { name: name.clone(), disk: Arc::clone(&disk), identity });
        Ok(disk)
    }

    /// Refuses a tree with one file under two names: it would change below itself.
    fn refuse_same_file(&self) -> Result<(), OpenError> {
        for (at, file) in self.files.iter().enumerate() {
            let above = self.files.iter().take(at).find(|above| above.identity == file.identity);
            if let Some(above) = above {
                let (first, second) = (above.name.clone(), file.name.clone());
                return Err(OpenError::SameFile { first, second });
            }
        }
        Ok(())
    }
}

/// Returns the path of a file, or the name of a descriptor in its place.
pub(crate) fn label(name: &FileRef) -> PathBuf {
    match name {
        FileRef::Path(path) => path.clone(),
        FileRef::Fd { .. } => name.to_string().into(),
    }
}
