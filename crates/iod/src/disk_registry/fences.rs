//! Fence waits that earlier attempts to activate a disk have left behind.
//!
//! A thread that waits for the I/O of a dead process sleeps in the kernel and cannot be cancelled.
//! An attempt that stops waiting leaves its thread behind, and the next attempt at the same disk
//! joins it. So only one thread and one open image wait, however often an activation is retried.

use std::path::PathBuf;
use std::sync::Arc;

use model::spec::Backend;

use super::DiskRegistry;
use crate::served_disk::{FenceWaiter, ServedDisk};

/// Fence wait without a waiting caller.
#[derive(Debug)]
pub(super) struct OrphanedFenceWait {
    of: Of,
    waiter: Arc<FenceWaiter>,
}

/// Disk, socket and image, which identify a fence.
type Of = (String, Option<PathBuf>, Backend);

fn of(served_disk: &ServedDisk) -> Of {
    let spec = served_disk.spec();
    (spec.id.clone(), spec.socket.clone(), spec.backend.clone())
}

impl DiskRegistry {
    /// Joins the pending fence wait of an earlier attempt, if there is one. Call this before an
    /// activation.
    pub(super) fn join_fence(&self, served_disk: &ServedDisk) {
        let mut disks = self.disks();
        disks.waits.retain(|left| !left.waiter.is_over());
        let of = of(served_disk);
        if let Some(left) = disks.waits.iter().find(|left| left.of == of) {
            served_disk.adopt_fence_wait(Arc::clone(&left.waiter));
        }
    }

    /// Stores the pending fence wait of a failed attempt, so that the next attempt can join it.
    pub(super) fn leave_fence(&self, served_disk: &ServedDisk) {
        let Some(waiter) = served_disk.waiter().filter(|waiter| !waiter.is_over()) else { return };
        let mut disks = self.disks();
        if !disks.waits.iter().any(|left| Arc::ptr_eq(&left.waiter, &waiter)) {
            disks.waits.push(OrphanedFenceWait { of: of(served_disk), waiter });
        }
    }
}
