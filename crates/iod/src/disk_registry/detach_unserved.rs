//! The end of disks that are held and not served.

use std::sync::Arc;

use vhost_user::Listener;

use super::DiskRegistry;
use super::restore::FencePatience;
use crate::error::error_chain;
use crate::keeper_client::{PreservedDisk, PreservedDiskRecord, PreservedFds};
use crate::served_disk::{ServedDisk, ServedDiskError};

impl DiskRegistry {
    /// Ends the detach that a dead worker began. What its guest was promised is made durable, and
    /// its last I/O has ended, before anybody may take the disk for detached.
    pub(super) fn finish_detach(
        &self,
        held: &PreservedDisk,
        patience: FencePatience,
    ) -> Result<(), ServedDiskError> {
        let id = &held.spec.id;
        // A client that wrote had the lock as a guest has.
        if held.active || held.is_exported_for_writing() {
            match ServedDisk::restore(held, self.kept(id)?, Arc::clone(&self.pool)) {
                Ok(export) => {
                    self.show(id, &export);
                    self.join_fence(&export);
                    let flushed = patience.activate(&export).and_then(|()| export.deactivate());
                    self.leave_fence(&export);
                    export.release_keep_files();
                    flushed?;
                }
                Err(error) if error.is_passing() => return Err(error),
                Err(error) => {
                    tracing::warn!(disk = id, "detached without a flush: {}", error_chain(&error));
                }
            }
        }
        self.detach_refused(id)?;
        tracing::info!(disk = id, "detached, as a worker before had begun to");
        Ok(())
    }

    /// Removes the socket of a disk that is not open, and forgets the disk.
    pub(super) fn detach_refused(&self, id: &str) -> Result<(), ServedDiskError> {
        let PreservedFds { listener, exports, .. } = self.kept(id)?;
        if listener.is_none() {
            self.sweep(id);
        }
        for socket in listener.into_iter().chain(exports) {
            drop(Listener::adopt(socket)?);
        }
        self.forget(id);
        Ok(())
    }

    /// Removes what an attach has left that was cut off before it could have its socket held.
    fn sweep(&self, id: &str) {
        let held = self.door.disks().into_iter().find(|found| found.held().spec.id == id);
        let Some(PreservedDiskRecord::Known(held)) = held else { return };
        if let Err(error) = Listener::sweep(&held.spec.socket) {
            // Somebody else's by now, or never made.
            tracing::info!(disk = id, "its socket is left alone: {}", error_chain(&error));
        }
    }
}
