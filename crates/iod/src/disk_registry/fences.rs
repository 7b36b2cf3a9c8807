//! Waits for fences that attempts at disks have left behind.
//!
//! Who waits for the I/O of a dead process sleeps in the kernel, on a thread that cannot be called
//! back. An attempt that waits no longer leaves it, and the next one at the same disk joins it:
//! however often it is tried, one thread and one open image wait.

use std::path::PathBuf;
use std::sync::Arc;

use model::spec::Backend;

use super::DiskRegistry;
use crate::served_disk::{FenceWaiter, ServedDisk};

/// A wait that nobody waits for.
#[derive(Debug)]
pub(super) struct OrphanedFenceWait {
    of: Of,
    waiter: Arc<FenceWaiter>,
}

/// Disk, socket and image: what a fence is told by.
type Of = (String, PathBuf, Backend);

fn of(served_disk: &ServedDisk) -> Of {
    let spec = served_disk.spec();
    (spec.id.clone(), spec.socket.clone(), spec.backend.clone())
}

impl DiskRegistry {
    /// Before a disk is activated: if a former attempt at it is still waited for, it joins that.
    pub(super) fn join_fence(&self, served_disk: &ServedDisk) {
        let mut disks = self.disks();
        disks.waits.retain(|left| !left.waiter.is_over());
        let of = of(served_disk);
        if let Some(left) = disks.waits.iter().find(|left| left.of == of) {
            served_disk.adopt_fence_wait(Arc::clone(&left.waiter));
        }
    }

    /// After an attempt that came to nothing: what is left of it is for the next one to join.
    pub(super) fn leave_fence(&self, served_disk: &ServedDisk) {
        let Some(waiter) = served_disk.waiter().filter(|waiter| !waiter.is_over()) else { return };
        let mut disks = self.disks();
        if !disks.waits.iter().any(|left| Arc::ptr_eq(&left.waiter, &waiter)) {
            disks.waits.push(OrphanedFenceWait { of: of(served_disk), waiter });
        }
    }
}
