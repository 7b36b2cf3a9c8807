//! Replacement of a disk's tree by another one with the same content, while its guest runs.
//!
//! ```text
//! prepare: open the new tree, make the old one durable       (the guest runs)
//! drain:   all rings of all disks, to one deadline           (the guest waits)
//!          make the last writes durable, stop the old owner,
//!          activate the new tree, preserve it with the keeper
//! go on:   rings open channels on the new tree
//! ```
//! Requests that wait for space are not waited for: they are submitted again to the new tree. Until
//! the keeper has the new trees, everything can go on as before. A process that dies in between
//! leaves the old tree or the new one, and both have everything that was acknowledged.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Disk, Geometry};
use model::image::ImageFormat;
use model::spec::{Backend, BlockSize, DiskSpec};

use super::new_image::NewImage;
use super::queues::StartedRings;
use super::{ServedDisk, ServedDiskError, lock};
use crate::deadline::run_with_deadline;
use crate::open_disk::{OpenTree, Opened, Sources};

/// Longest wait of guests for a replacement, or for new channels.
pub(super) const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// New tree of a disk, opened and not yet used.
#[derive(Debug)]
pub(crate) struct Replacement {
    served_disk: Arc<ServedDisk>,
    disk: Arc<dyn Disk>,
    tree: Arc<OpenTree>,
    /// Image that was created for it, and is removed if it is not used.
    created: Option<PathBuf>,
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(path) = self.created.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!("cannot remove the unused image {}: {error}", path.display());
        }
    }
}

impl ServedDisk {
    /// Opens another tree of the disk.
    ///
    /// # Errors
    /// The disk has another backend than `expect`, is stuck or exported for writing. The tree cannot
    /// be opened, or has another size.
    pub(crate) fn prepare_replacement(
        self: &Arc<Self>,
        backend: Backend,
        expect: &Backend,
    ) -> Result<Replacement, ServedDiskError> {
        self.refuse_stuck("disk.replace")?;
        self.refuse_writable()?;
        let tree = self.tree();
        if tree.backend != *expect {
            let (present, expected) = (tree.backend.to_string(), expect.to_string());
            return Err(ServedDiskError::OtherBackend { present, expected });
        }
        if tree.backend.is_overlay() && !backend.is_overlay() {
            return Err(ServedDiskError::OverlayLost);
        }
        self.open_replacement(backend, tree.sources_of_next())
    }

    /// Opens the present tree with an overlay that nothing was written to.
    ///
    /// # Errors
    /// The disk has no overlay, is stuck or exported for writing, or the tree cannot be opened.
    pub(crate) fn prepare_reset(self: &Arc<Self>) -> Result<Replacement, ServedDiskError> {
        self.refuse_stuck("disk.reset")?;
        self.refuse_writable()?;
        let tree = self.tree();
        if !tree.backend.is_overlay() {
            return Err(ServedDiskError::NoOverlay { place: self.backend_text() });
        }
        let fresh = |sources| Sources { overlay: None, ..sources };
        self.open_replacement(tree.backend.clone(), tree.sources_of_next().map(fresh))
    }

    fn open_replacement(
        self: &Arc<Self>,
        backend: Backend,
        sources: io::Result<Sources>,
    ) -> Result<Replacement, ServedDiskError> {
        let known = self.geometry();
        let block_size = Some(BlockSize::Bytes(known.block_size));
        let spec = DiskSpec { backend, block_size, ..self.spec.clone() };
        spec.validate()?;
        let sources = sources.map_err(|source| ServedDiskError::Os { action: "open", source })?;
        let opened = Self::open_disk(&spec, sources, None)?;
        let found = opened.disk.geometry();
        let told = |one: Geometry| (one.size, one.block_size, one.read_only);
        if told(found) != told(known) {
            let text =
                |one: Geometry| format!("{} bytes in blocks of {}", one.size, one.block_size);
            let (found, known) = (text(found), text(known));
            return Err(ServedDiskError::OtherGeometry { found, known });
        }
        let Opened { disk, tree, .. } = opened;
        let (served_disk, tree) = (Arc::clone(self), Arc::new(tree));
        Ok(Replacement { served_disk, disk, tree, created: None })
    }

    /// Creates an image at `file` and opens it over the present tree.
    ///
    /// # Errors
    /// As [`Self::prepare_replacement`], or the image exists or cannot be created.
    pub(crate) fn prepare_snapshot(
        self: &Arc<Self>,
        file: PathBuf,
        format: ImageFormat,
    ) -> Result<Replacement, ServedDiskError> {
        let present = self.tree().backend.clone();
        let create_error = |source| ServedDiskError::Create { path: file.clone(), source };
        let new = NewImage::over(&self.tree(), format, self.geometry().size);
        let new = new.map_err(create_error)?;
        let path = file.clone();
        let created = self.run_with_stop_deadline(
            self.deadline(),
            "disk.snapshot",
            "a new image",
            move || Ok::<_, disk::DiskError>(new.create(&path)),
        )?;
        created.map_err(create_error)?;
        let backend = Backend::image_over(format, file.clone().into(), Some(present.clone()));
        // No raw image was created.
        let backend = backend.unwrap_or_else(|| present.clone());
        match self.prepare_replacement(backend, &present) {
            Ok(mut replacement) => {
                replacement.created = Some(file);
                Ok(replacement)
            }
            Err(error) => {
                // The caller learns the first failure.
                let _ = std::fs::remove_file(&file);
                Err(error)
            }
        }
    }

    /// Makes the writes so far durable, by `deadline`.
    fn sync_by(&self, deadline: Instant) -> Result<(), ServedDiskError> {
        let disk = self.replaceable.current();
        match run_with_deadline(deadline, move || disk.sync()) {
            Ok(synced) => Ok(synced?),
            Err(_) if self.waiting() > 0 => {
                Err(ServedDiskError::FlushWaits { place: self.backend_text() })
            }
            Err(_) => Err(ServedDiskError::NotDrained { place: self.backend_text() }),
        }
    }

    /// Drains the rings and stops the present tree.
    fn stop_tree(
        &self,
        queues: &mut StartedRings,
        deadline: Instant,
    ) -> Result<(), ServedDiskError> {
        let not_drained = || ServedDiskError::NotDrained { place: self.backend_text() };
        if !queues.quiesce(deadline) {
            return Err(not_drained());
        }
        if self.is_active() {
            self.sync_by(deadline)?;
        }
        self.quiesce_tree(deadline)
    }

    /// Serves rings again that were drained.
    pub(super) fn serve_again(&self, queues: &mut StartedRings) {
        if self.is_active() && !self.is_paused() {
            queues.serve();
        }
    }
}

/// Replaces the trees of all disks at one instant. `preserve` preserves a disk with the keeper.
/// Returns for how long guests waited.
///
/// # Errors
/// A disk does not drain in time, or a new tree cannot be used. All disks go on as before.
pub(crate) fn swap_all(
    mut replacements: Vec<Replacement>,
    preserve: impl Fn(&ServedDisk) -> Result<(), ServedDiskError>,
) -> Result<Duration, ServedDiskError> {
    for one in replacements.iter().filter(|one| one.served_disk.is_active()) {
        // While the guest runs, so that little is left when it waits.
        one.served_disk.sync_by(one.served_disk.deadline())?;
    }
    let began = Instant::now();
    let deadline = began + DRAIN_WITHIN;
    let disks: Vec<_> = replacements.iter().map(|one| Arc::clone(&one.served_disk)).collect();
    let mut held = Vec::new();
    for disk in &disks {
        let place = disk.backend_text();
        let queues = disk.queues.lock_until(deadline);
        held.push(queues.ok_or(ServedDiskError::NotDrained { place })?);
    }
    let stopped =
        disks.iter().zip(&mut held).try_for_each(|(disk, queues)| disk.stop_tree(queues, deadline));
    let swapped = stopped.and_then(|()| swap_stopped(&mut replacements, deadline, preserve));
    for (disk, queues) in disks.iter().zip(&mut held) {
        disk.disk.unquiesce();
        disk.serve_again(queues);
    }
    drop(held);
    swapped.map(|()| {
        // Clients of exports have channels on the former tree. They connect again.
        disks.iter().for_each(|disk| disk.disconnect_clients());
        began.elapsed()
    })
}

/// Replaces the trees of drained disks, or of none.
fn swap_stopped(
    replacements: &mut [Replacement],
    deadline: Instant,
    preserve: impl Fn(&ServedDisk) -> Result<(), ServedDiskError>,
) -> Result<(), ServedDiskError> {
    for one in replacements.iter().filter(|one| one.served_disk.needs_active(&*one.disk)) {
        let disk = Arc::clone(&one.disk);
        let place = one.served_disk.backend_text();
        let activated = run_with_deadline(deadline, move || disk.activate());
        activated.map_err(|_| ServedDiskError::NotDrained { place })??;
    }
    // From here on, `disk` and `tree` of a replacement are the former ones.
    let exchange = |one: &mut Replacement| {
        let present = &one.served_disk;
        one.disk = present.replaceable.replace(Arc::clone(&one.disk));
        std::mem::swap(&mut *lock(&present.tree), &mut one.tree);
    };
    replacements.iter_mut().for_each(exchange);
    let preserved = replacements.iter().try_for_each(|one| preserve(&one.served_disk));
    if let Err(error) = preserved {
        replacements.iter_mut().for_each(exchange);
        // The keeper may have some of them.
        for one in replacements.iter() {
            let _ = preserve(&one.served_disk);
        }
        return Err(error);
    }
    for one in replacements {
        one.created = None;
        let tree = one.served_disk.tree();
        let top = tree.files.first().map(|file| file.identity);
        let is_below = |identity| Some(identity) != top;
        let former = one.tree.files.first().filter(|file| is_below(file.identity));
        // What lies below the top never changes, and others may read it.
        former.into_iter().for_each(|file| file.disk.freeze());
        tree.watch_full(&one.served_disk.spec.id, &one.served_disk.pool);
        tracing::info!(disk = one.served_disk.spec.id, "backend replaced by {}", tree.backend);
    }
    Ok(())
}
