//! Opening of a spec's tree: the only code that turns nodes into disks.
//!
//! Only the top file of a tree is written to. A window passes this on to its child, because it
//! stores nothing itself. A file below a qcow2 image is opened read-only and takes QEMU's lock for
//! readers. Each file has the disk's fence.

mod files;
mod overlay_layer;
mod signature;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock};

use disk::{Disk, DiskError, FileDisk, MemoryDisk, NullDisk, Window};
use image::map::PagePool;
use image::vhd::DiskType;
use mapped::{LayerOptions, MappedDisk, READ_ONLY_JOURNAL};
use memory::{Mapping, MemoryError};
use model::spec::{Backend, BlockSize, CacheMode, DiskSpec, FileRef};

use super::image_journal::{self, ImageJournal};
use super::model_storage::{ModelStorage, open_bytes};
use super::open_tree::OpenTree;
use super::reference::{self, Comparison};
use super::storage_disks::StorageDisks;
use super::{OpenError, Opened, in_blocks};
pub use files::TreeFile;
use files::Use;
pub(crate) use files::{FileState, label};

/// Descriptors from which a disk is opened, beside the paths of its spec.
#[derive(Debug, Default)]
pub struct Sources {
    /// Bytes of the tree's memory disk, if a former process has made them.
    pub memory: Option<OwnedFd>,
    /// Journal of the image at the top, if a former process has written to it.
    pub journal: Option<OwnedFd>,
    /// Writes of an overlay, if a former process has made them.
    pub overlay: Option<OwnedFd>,
    /// Files that were handed in, by the numbers that the spec gives them.
    pub files: BTreeMap<u32, OwnedFd>,
    /// True if nothing preserves the journal of an image for a successor: it is a file then.
    pub journal_in_file: bool,
    /// Files that this process has open for the same disk. They are used again where the tree names
    /// them, with their locks and fences.
    pub reused: Vec<TreeFile>,
    /// Images below the top of the present tree, which go on below the top of the next one.
    pub images: Vec<LowerImage>,
    /// The disk on the storages of its files, if it is served already.
    pub(crate) storage_disks: Option<Arc<StorageDisks>>,
}

/// Image below the top of a tree. It never changes, so the trees of a disk share it.
#[derive(Clone, Debug)]
pub struct LowerImage {
    /// The image with all below it, as a spec tells it.
    backend: Backend,
    disk: Arc<dyn Disk>,
}

/// Words of maps that this process keeps in memory: 64 MiB, which cover 512 GiB of images with
/// clusters of 64 KiB.
static PAGES: LazyLock<Arc<PagePool>> = LazyLock::new(|| Arc::new(PagePool::new(16 << 10)));

/// Opener of one tree.
pub(super) struct TreeOpener<'a> {
    spec: &'a DiskSpec,
    sources: Sources,
    /// Open files of another process, top first: one for each file of the tree, or none at all.
    open_files: std::vec::IntoIter<(OwnedFd, FileState)>,
    tree: OpenTree,
    refusal: Option<OpenError>,
    /// True if raw files may begin like other images.
    is_raw_stated: bool,
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
        let is_raw_stated = spec.format.is_some() || open_files.len() > 0;
        let given = sources.storage_disks.clone();
        let storage_disks = given.unwrap_or_else(|| StorageDisks::new(&spec.id, spec.share));
        let tree = OpenTree::new(spec, storage_disks);
        Self { spec, sources, open_files, tree, refusal: None, is_raw_stated }
    }

    /// Opens the tree. If its top is a leaf, the guest sees at most `told` bytes of it.
    pub(super) fn open(mut self, told: Option<u64>) -> Result<Opened, OpenError> {
        let spec = self.spec;
        // A guest that was told a size has perhaps written what the file begins with.
        self.is_raw_stated |= told.is_some();
        let disk = self.node(&spec.backend, !spec.read_only, told)?;
        let disk = in_blocks(disk, spec.block_bytes());
        self.refuse_same_file()?;
        if let (Backend::File(_), false, None, Some(file)) =
            (&spec.backend, spec.read_only, &self.refusal, self.tree.files.first())
        {
            signature::mark(&file.disk);
        }
        let Self { sources, mut tree, refusal, .. } = self;
        tree.handed_in = sources.files;
        let is_named = |fd: u32| spec.backend.files().any(|name| *name == FileRef::Fd { fd });
        tree.handed_in.retain(|fd, _| is_named(*fd));
        Ok(Opened { disk, tree, refusal })
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
            Backend::File(name) => {
                let size = told.unwrap_or(u64::MAX);
                let disk = self.open_file(name, writable, Use::Disk { size })?;
                self.check_signature(name, &disk);
                disk
            }
            Backend::Null(size) => {
                Arc::new(NullDisk::new(told.unwrap_or(*size), block_size, !writable))
            }
            Backend::Memory(size) => {
                let disk = match self.sources.memory.take() {
                    Some(preserved) => MemoryDisk::adopt(preserved, block_size, !writable)?,
                    None => MemoryDisk::new(*size, block_size, !writable)?,
                };
                self.tree.memory = Some(Arc::clone(disk.file()));
                Arc::new(disk)
            }
            Backend::Model(model) => {
                let storage = ModelStorage::find(model)?;
                let disk = open_bytes(self.spec, model, self.sources.memory.take())?;
                disk.delay(&storage.device);
                self.tree.notes.extend(self.tree.storage_disks.schedule_on_model(&disk, storage));
                self.tree.memory = Some(Arc::clone(disk.handover().0));
                Arc::new(disk)
            }
            Backend::Golden(image) => {
                let disk = golden::open(image, block_size)?;
                self.tree.backend.set_golden_identity(disk.identity().to_owned());
                self.tree.notes.extend(disk.problem());
                self.tree.notes.extend(disk.digest_problem());
                Arc::new(disk)
            }
            Backend::Overlay { base, ram, overflow, overflow_size } => {
                self.overlay_over(base, *ram, (overflow.as_ref(), *overflow_size), told)?
            }
            Backend::Raw { child, offset, size } => {
                // A window says that it is raw.
                let is_stated = std::mem::replace(&mut self.is_raw_stated, true);
                let child = self.node(child, writable, None)?;
                self.is_raw_stated = is_stated;
                Arc::new(Window::new(child, *offset, *size)?)
            }
            Backend::Qcow2 { .. } | Backend::Vhd { .. } => {
                let reused = if writable { None } else { self.reuse_image(node) };
                let disk = reused.map_or_else(|| self.image(node, writable, told), Ok)?;
                if !writable {
                    self.tree.images.push(LowerImage { backend: node.clone(), disk: disk.clone() });
                }
                disk
            }
        })
    }

    /// Notes what a raw file begins like. Another image is refused at its first attach, unless the
    /// caller states that it is raw.
    fn check_signature(&mut self, name: &FileRef, disk: &FileDisk) {
        let Some(signature) = signature::of_disk(disk) else { return };
        let (name, advice) = (name.clone(), signature::advice(signature, name));
        if signature.is_image() && !self.is_raw_stated && !signature::is_marked(disk) {
            self.refusal.get_or_insert(OpenError::FormatNotStated { name, advice });
        } else {
            self.tree.notes.push(format!("{name} is served as a raw image and {advice}"));
        }
    }

    /// Returns an image that the present tree has below its top, with the files of all below it.
    fn reuse_image(&mut self, node: &Backend) -> Option<Arc<dyn Disk>> {
        let is_it = |image: &&LowerImage| image.backend == *node;
        let disk = self.sources.images.iter().find(is_it)?.disk.clone();
        let reused = &self.sources.reused;
        let files = node.files().filter_map(|name| reused.iter().find(|file| file.name == *name));
        self.tree.files.extend(files.cloned());
        for below in node.nodes().skip(1) {
            let known = self.sources.images.iter().find(|image| image.backend == *below);
            self.tree.images.extend(known.cloned());
        }
        Some(disk)
    }

    /// Opens an image over its backing, which is read-only.
    fn image(
        &mut self,
        node: &Backend,
        writable: bool,
        told: Option<u64>,
    ) -> Result<Arc<dyn Disk>, OpenError> {
        let (name, backing, is_vhd) = match node {
            Backend::Qcow2 { file, backing } => (file, backing.as_deref(), false),
            Backend::Vhd { file, backing } => (file, backing.as_deref(), true),
            other => return self.node(other, writable, told),
        };
        let image_error = |source| OpenError::Image { name: name.clone(), source };
        if is_vhd {
            let head = self.vhd_head(name)?;
            if head.disk_type == DiskType::Fixed && backing.is_none() {
                let size = told.unwrap_or(head.size).min(head.size);
                let disk = self.open_file(name, writable, Use::Disk { size })?;
                // The footer lies behind the disk, so the disk does not grow.
                return Ok(Arc::new(Window::new(disk, 0, size)?));
            }
        }
        let file = self.open_file(name, writable, Use::Container)?;
        let below = backing.map(|backing| self.node(backing, false, None)).transpose()?;
        let parent_id = match backing {
            Some(Backend::Vhd { file, .. }) if is_vhd => Some(self.vhd_head(file)?.unique_id),
            _ => None,
        };
        let options = LayerOptions {
            path: label(name),
            read_only: !writable,
            direct: self.spec.cache == CacheMode::None,
            waits_for_room: self.spec.on_full == model::spec::OnFull::Wait,
            journal: self.journal(name, &file, writable)?,
            pages: Arc::clone(&PAGES),
        };
        let disk = match is_vhd {
            true => MappedDisk::open_vhd(file, below, parent_id, options),
            false => MappedDisk::open_qcow2(file, below, options),
        };
        let disk = disk.map_err(image_error)?;
        match reference::compare(node, name, disk.reference(), backing) {
            Comparison::Same => {}
            Comparison::Differs(note) => self.tree.notes.push(note),
            Comparison::NoBacking(error) => drop(self.refusal.get_or_insert(error)),
        }
        Ok(Arc::new(disk))
    }

    /// Returns the journal of an image. That of the image at the top outlives the process; those of
    /// others stay empty.
    fn journal(
        &mut self,
        name: &FileRef,
        file: &FileDisk,
        writable: bool,
    ) -> Result<Arc<ImageJournal>, OpenError> {
        let memory = match (writable, self.sources.journal_in_file) {
            (true, true) => None,
            (true, false) => Some(self.preserved_journal(name)?),
            (false, _) => {
                let cells = READ_ONLY_JOURNAL.cells().unwrap_or_default();
                let private = Mapping::private(cells * 8);
                Some(private.map(Arc::new).map_err(|source| journal_error(name)(source))?)
            }
        };
        let journal = ImageJournal::new(file.identity()?, self.spec.socket.as_deref(), memory);
        Ok(Arc::new(journal.map_err(DiskError::os("find the journal of", label(name)))?))
    }

    /// Returns the memory of the journal of the image at the top, which the keeper gets, too.
    fn preserved_journal(&mut self, name: &FileRef) -> Result<Arc<Mapping>, OpenError> {
        let (error, bytes) = (journal_error(name), image_journal::bytes());
        let fd = match self.sources.journal.take() {
            Some(preserved) => preserved,
            None => {
                let made = Mapping::sealed("ringway-journal", bytes).map_err(&error)?;
                let fd = made.fd().map(|fd| fd.try_clone_to_owned()).transpose();
                fd.map_err(DiskError::os("duplicate the journal of", label(name)))?
                    .ok_or_else(|| error(MemoryError::BadRange { start: 0, len: bytes }))?
            }
        };
        let mapping = Mapping::file(fd.as_fd(), bytes).map_err(&error)?;
        self.tree.journal = Some(Arc::new(fd));
        Ok(Arc::new(mapping))
    }
}

fn journal_error(name: &FileRef) -> impl Fn(MemoryError) -> OpenError {
    move |source| OpenError::Journal { name: name.clone(), source }
}
