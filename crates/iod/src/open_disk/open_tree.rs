//! Opened tree of a disk, which a replacement changes as a whole.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use disk::Disk as _;
use model::spec::{Backend, DiskSpec};
use overlay::OverlayDisk;

use super::{LowerImage, Sources, StorageDisks, TreeFile};
use crate::pool::Pool;

/// Files and descriptors behind an opened disk.
#[derive(Debug)]
pub(crate) struct OpenTree {
    /// The tree as a spec tells it, with the identity of its golden image: a successor must find the
    /// same one.
    pub(crate) backend: Backend,
    /// Files of the tree, top first.
    pub(crate) files: Vec<TreeFile>,
    /// The disk on the storages of its files.
    pub(crate) storage_disks: Arc<StorageDisks>,
    /// Images below the top.
    pub(super) images: Vec<LowerImage>,
    /// Descriptor of a memory disk's bytes.
    pub(super) memory: Option<Arc<OwnedFd>>,
    /// Descriptor of the journal of the image at the top, if it is written.
    pub(super) journal: Option<Arc<OwnedFd>>,
    /// Overlay of the disk, if it has one.
    pub(crate) overlay: Option<Arc<OverlayDisk>>,
    /// Descriptors that were handed in for the files, by their numbers in the spec. A successor opens
    /// its files from them.
    pub(super) handed_in: BTreeMap<u32, OwnedFd>,
    /// Notes for the caller of an attach, with remedies.
    pub(crate) notes: Vec<String>,
}

impl OpenTree {
    /// Returns the tree of a spec before its first node is opened.
    pub(super) fn new(spec: &DiskSpec, storage_disks: Arc<StorageDisks>) -> Self {
        let (files, images, memory, journal, overlay) = Default::default();
        let (handed_in, notes) = Default::default();
        let backend = spec.backend.clone();
        Self { backend, files, storage_disks, images, memory, journal, overlay, handed_in, notes }
    }

    /// Reports it from now on if requests wait for space for a file of the tree.
    pub(crate) fn watch_full(&self, id: &str, pool: &Pool) {
        for file in &self.files {
            pool.full_watch().add(id, file.name.to_string(), file.disk.room_waits());
        }
        if let Some(overlay) = &self.overlay
            && overlay.overlay_counts().is_some_and(|counts| !counts.has_overflow)
        {
            let place = format!("the memory of the overlay of {id}");
            pool.full_watch().add(id, place, overlay.room_waits());
        }
    }

    /// Duplicates the descriptors from which a successor opens the tree.
    ///
    /// # Errors
    /// The process cannot open more descriptors.
    pub(crate) fn sources(&self) -> io::Result<Sources> {
        let memory = self.memory.as_deref().map(OwnedFd::try_clone).transpose()?;
        let journal = self.journal.as_deref().map(OwnedFd::try_clone).transpose()?;
        let overlay = self.overlay.as_ref().map(|one| one.memory().try_clone()).transpose()?;
        let files = self.handed_in.iter().map(|(number, fd)| Ok((*number, fd.try_clone()?)));
        let files = files.collect::<io::Result<_>>()?;
        Ok(Sources { memory, journal, overlay, files, ..Sources::default() })
    }

    /// Returns the sources from which this process opens another tree of the same disk.
    ///
    /// # Errors
    /// The process cannot open more descriptors.
    pub(crate) fn sources_of_next(&self) -> io::Result<Sources> {
        // The new top has a journal of its own.
        let (reused, images) = (self.files.clone(), self.images.clone());
        let storage_disks = Some(Arc::clone(&self.storage_disks));
        Ok(Sources { journal: None, reused, images, storage_disks, ..self.sources()? })
    }
}
