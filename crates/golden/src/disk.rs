//! Disk of a golden image.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ::disk::{CacheState, Channel, Disk, DiskError, Extent, Geometry, IoError};
use reactor::Context;

use crate::boot_set::{self, Recorder};
use crate::channel::GoldenChannel;
use crate::image::CachedImage;
use crate::{digest, link, source};

/// Read-only disk with the bytes of a golden image. It shares the cache with all other disks of the
/// process on the same image.
#[derive(Debug)]
pub struct GoldenDisk {
    image: Arc<ImageGuard>,
    block_size: u32,
}

/// Use of an image by a disk and its channels.
#[derive(Debug)]
pub(crate) struct ImageGuard(Arc<CachedImage>);

impl ImageGuard {
    /// Begins a use. The first one of an image reads the boot set, or records it.
    fn new(image: Arc<CachedImage>) -> Self {
        let is_first = image.state().users == 0;
        let set =
            is_first.then(|| boot_set::read(&image.boot_path, &image.identity, image.blocks()));
        let mut state = image.state();
        state.users += 1;
        match set {
            Some(Some(blocks)) => state.background.add_boot_set(blocks),
            Some(None) if state.recorder.is_none() => state.recorder = Some(Recorder::default()),
            _ => {}
        }
        drop(state);
        Self(image)
    }
}

impl Deref for ImageGuard {
    type Target = Arc<CachedImage>;

    fn deref(&self) -> &Arc<CachedImage> {
        &self.0
    }
}

impl Drop for ImageGuard {
    fn drop(&mut self) {
        let mut state = self.state();
        state.users -= 1;
        if state.users == 0 {
            state.background.clear();
        }
        drop(state);
        self.bell.notify_all();
    }
}

impl GoldenDisk {
    pub(crate) fn new(image: Arc<CachedImage>, block_size: u32) -> Self {
        Self { image: Arc::new(ImageGuard::new(image)), block_size }
    }

    /// Returns the image.
    pub(crate) fn image(&self) -> &Arc<CachedImage> {
        &self.image
    }

    /// Returns the identity of the image.
    pub fn identity(&self) -> &str {
        &self.image.identity
    }

    /// Returns the file of the source, if the source is a file and has the image now. The file tells where
    /// the image has holes. Waits for its storage, so it is not for reactors.
    pub fn source_file(&self) -> Option<OwnedFd> {
        let (file, version) = source::open_file(&self.image.source)?;
        link::check(&self.image, &version).ok()?;
        Some(file.into())
    }

    /// Returns the reason why requests wait for the source, if they do.
    pub fn problem(&self) -> Option<String> {
        self.image.problem()
    }

    /// Returns what is wrong with the bytes, if their digest is known to be another one than the identity.
    pub fn digest_problem(&self) -> Option<String> {
        Some(digest::problem(&self.image.cache_state().other_digest?))
    }
}

impl Disk for GoldenDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.image.size,
            block_size: self.block_size,
            read_only: true,
            discard: false,
            discard_granularity: self.block_size,
        }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        Box::new(GoldenChannel::new(Arc::clone(&self.image), context))
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        // Nothing is written.
        Ok(())
    }

    fn activate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        match size {
            Some(size) if size != self.image.size => {
                let problem = "a golden image never changes; attach the disk with another image";
                Err(DiskError::Resize { problem: problem.into() })
            }
            _ => Ok(self.geometry()),
        }
    }

    fn cache_state(&self) -> Option<CacheState> {
        Some(self.image.cache_state())
    }

    fn stalled(&self) -> u64 {
        0
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        self.geometry().check_inside(offset, len)?;
        Ok(vec![Extent { len, hole: false }])
    }

    fn zeroes_fast(&self, _: bool) -> bool {
        false
    }
}
