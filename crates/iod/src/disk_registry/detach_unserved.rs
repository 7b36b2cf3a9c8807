//! Detach of disks that are preserved but not served.

use std::sync::Arc;

use vhost_user::Listener;

use super::DiskRegistry;
use super::restore::FencePatience;
use crate::error::error_chain;
use crate::keeper_client::{PreservedDisk, PreservedDiskRecord};
use crate::served_disk::{ServedDisk, ServedDiskError};

impl DiskRegistry {
    /// Completes the detach that a dead worker began. Before the disk counts as detached, its last
    /// I/O has ended and acknowledged writes are durable.
    pub(super) fn finish_detach(
        &self,
        preserved_disk: &PreservedDisk,
        patience: FencePatience,
    ) -> Result<(), ServedDiskError> {
        let id = &preserved_disk.spec.id;
        // An NBD client that writes has the image locked as a guest does.
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
        tracing::info!(disk = id, "detached: completed the detach of a former worker");
        Ok(())
    }

    /// Removes the socket of a disk that is not open, and forgets the disk.
    pub(super) fn detach_refused(&self, id: &str) -> Result<(), ServedDiskError> {
        let sockets = self.kept_entry(id)?.sockets;
        if sockets.is_empty() {
            self.sweep(id);
        }
        for socket in sockets {
            drop(Listener::adopt(socket)?);
        }
        self.forget(id);
        Ok(())
    }

    /// Removes the socket files of an attach that was interrupted before it could preserve its
    /// socket.
    fn sweep(&self, id: &str) {
        let held = self
            .keeper_client
            .disks()
            .into_iter()
            .find(|preserved_disk_record| preserved_disk_record.held().spec.id == id);
        let Some(PreservedDiskRecord::Known(preserved_disk)) = held else { return };
        if let Some(socket) = &preserved_disk.spec.socket
            && let Err(error) = Listener::sweep(socket)
        {
            // Another process owns the path by now, or the files were never created.
            tracing::info!(disk = id, "socket file not removed: {}", error_chain(&error));
        }
    }
}
