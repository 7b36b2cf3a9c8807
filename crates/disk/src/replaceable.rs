//! A disk that can be replaced by another one with the same content.

use std::sync::{Arc, PoisonError, RwLock};

use reactor::Context;

use crate::{Channel, Disk, DiskError, Extent, Geometry, IoError};

/// Disk that stands for another one. Channels belong to the disk that was there when they were
/// opened: [`Replaceable::replace`] is called while none is open that a guest uses.
#[derive(Debug)]
pub struct Replaceable(RwLock<Arc<dyn Disk>>);

impl Replaceable {
    /// Creates a disk that stands for `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self(RwLock::new(disk))
    }

    /// Returns the present disk.
    pub fn current(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the disk. Returns the former one.
    pub fn replace(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        std::mem::replace(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), disk)
    }
}

impl Disk for Replaceable {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        Some(self.current())
    }

    fn geometry(&self) -> Geometry {
        self.current().geometry()
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        self.current().open_channel(context)
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        self.current().wait_fence()
    }

    fn activate(&self) -> Result<(), DiskError> {
        self.current().activate()
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        self.current().deactivate()
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.current().sync()
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        self.current().resize(size)
    }

    fn stalled(&self) -> u64 {
        self.current().stalled()
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError> {
        self.current().extents(offset, len, limit)
    }

    fn zeroes_fast(&self, unmap: bool) -> bool {
        self.current().zeroes_fast(unmap)
    }
}
