//! The end of disks that are held and not served.

use std::sync::Arc;

use vhost_user::Listener;

use super::Table;
use super::restore::Patience;
use crate::error::text;
use crate::export::{Export, ExportError};
use crate::held::{Found, Held, Kept};

impl Table {
    /// Ends the detach that a dead worker began. What its guest was promised is made durable, and
    /// its last I/O has ended, before anybody may take the disk for detached.
    pub(super) fn leave_held(&self, held: &Held, patience: Patience) -> Result<(), ExportError> {
        let id = &held.spec.id;
        // A client that wrote had the lock as a guest has.
        if held.active || held.is_exported_for_writing() {
            match Export::restore(held, self.kept(id)?, Arc::clone(&self.pool)) {
                Ok(export) => {
                    self.show(id, &export);
                    self.join_fence(&export);
                    let flushed = patience.activate(&export).and_then(|()| export.deactivate());
                    self.leave_fence(&export);
                    export.let_go();
                    flushed?;
                }
                Err(error) if error.is_passing() => return Err(error),
                Err(error) => {
                    tracing::warn!(disk = id, "detached without a flush: {}", text(&error));
                }
            }
        }
        self.leave_refused(id)?;
        tracing::info!(disk = id, "detached, as a worker before had begun to");
        Ok(())
    }

    /// Removes the socket of a disk that is not open, and forgets the disk.
    pub(super) fn leave_refused(&self, id: &str) -> Result<(), ExportError> {
        let Kept { listener, exports, .. } = self.kept(id)?;
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
        let Some(Found::Known(held)) = held else { return };
        if let Err(error) = Listener::sweep(&held.spec.socket) {
            // Somebody else's by now, or never made.
            tracing::info!(disk = id, "its socket is left alone: {}", text(&error));
        }
    }
}
