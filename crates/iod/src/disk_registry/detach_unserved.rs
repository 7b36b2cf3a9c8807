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
        preserved_disk: &PreservedDisk,
        patience: FencePatience,
    ) -> Result<(), ServedDiskError> {
        let id = &preserved_disk.spec.id;
        // A client that wrote had the lock as a guest has.
        if preserved_disk.active || preserved_disk.is_exported_for_writing() {
            match ServedDisk::restore(preserved_disk, self.kept(id)?, Arc::clone(&self.pool)) {
                Ok(served_disk) => {
                    self.show(id, &served_disk);
                    self.join_fence(&served_disk);
                    let flushed =
                        patience.activate(&served_disk).and_then(|()| served_disk.deactivate());
                    self.leave_fence(&served_disk);
                    served_disk.release_keep_files();
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
        let held = self
            .keeper_client
            .disks()
            .into_iter()
            .find(|preserved_disk_record| preserved_disk_record.held().spec.id == id);
        let Some(PreservedDiskRecord::Known(preserved_disk)) = held else { return };
        if let Err(error) = Listener::sweep(&preserved_disk.spec.socket) {
            // Somebody else's by now, or never made.
            tracing::info!(disk = id, "its socket is left alone: {}", error_chain(&error));
        }
    }
}
