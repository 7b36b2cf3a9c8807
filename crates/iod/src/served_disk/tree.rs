//! Tree of a served disk, which a replacement changes as a whole.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use disk::Disk;
use model::spec::Backend;
use overlay::OverlayDisk;

use crate::open_disk::{LowerImage, Opened, Sources, StorageDisks, TreeFile};
use crate::pool::Pool;

/// Files and descriptors behind a disk.
#[derive(Debug)]
pub(crate) struct ServedTree {
    /// The tree as a spec tells it.
    pub(crate) backend: Backend,
    /// Files of the tree, top first.
    pub(crate) files: Vec<TreeFile>,
    /// The disk on the storages of its files.
    pub(crate) storage_disks: Arc<StorageDisks>,
    /// Images below the top.
    images: Vec<LowerImage>,
    /// Descriptor of a memory disk's bytes.
    memory: Option<Arc<OwnedFd>>,
    /// Descriptor of the journal of the image at the top, if it is written.
    journal: Option<Arc<OwnedFd>>,
    /// Overlay of the disk, if it has one.
    pub(crate) overlay: Option<Arc<OverlayDisk>>,
    /// Descriptors that were handed in for the files, by their numbers in the spec.
    handed_in: BTreeMap<u32, OwnedFd>,
    /// Notes on the files, with remedies.
    pub(crate) notes: Vec<String>,
}

impl ServedTree {
    /// Separates an opened disk from the files and descriptors behind it.
    pub(super) fn new(mut backend: Backend, opened: Opened) -> (Arc<dyn Disk>, Self) {
        let Opened {
            disk,
            memory,
            journal,
            overlay,
            files,
            storage_disks,
            golden_identity,
            images,
            handed_in,
            notes,
            ..
        } = opened;
        if let Some(identity) = golden_identity {
            backend.set_golden_identity(identity);
        }
        let tree = Self {
            backend,
            files,
            storage_disks,
            images,
            memory,
            journal,
            overlay,
            handed_in,
            notes,
        };
        (disk, tree)
    }

    /// Reports it from now on if requests wait for space for a file of the tree.
    pub(super) fn watch_full(&self, id: &str, pool: &Pool) {
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
    pub(super) fn sources(&self) -> io::Result<Sources> {
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
    pub(super) fn sources_of_next(&self) -> io::Result<Sources> {
        // The new top has a journal of its own.
        let (reused, images) = (self.files.clone(), self.images.clone());
        let storage_disks = Some(Arc::clone(&self.storage_disks));
        Ok(Sources { journal: None, reused, images, storage_disks, ..self.sources()? })
    }
}
