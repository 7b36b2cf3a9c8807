//! Disks that a worker before us had: brought back, or refused with a reason.

use std::sync::Arc;

use model::rpc::{DiskReply, RpcError};
use vhost_user::Listener;

use super::{Entry, Table, reply, wrong_state};
use crate::error::{failed, text};
use crate::export::{Export, ExportError};
use crate::held::{Held, HoldError, Kept};
use crate::lifecycle::{Begin, Phase, Rest, Verb};

/// What is told of a disk until its storage has answered.
const BEING_OPENED: &str = "it is being taken over, and its storage has not answered yet";

/// A disk that is held and cannot be had again as it was. Its guest waits in the backlog.
#[derive(Debug)]
pub(crate) struct RefusedDisk {
    /// As it was.
    pub(crate) held: Held,
    /// Why it is not so any more, and what can be done.
    pub(crate) reason: String,
}

impl Table {
    /// Brings back every disk that is held, all of them at once. Does not wait: each is busy
    /// until it is there, or refused.
    pub fn restore(self: &Arc<Self>) {
        for held in self.door.disks() {
            if self.disks().by_id.contains_key(&held.spec.id) {
                // Taken over from a worker that served it.
                continue;
            }
            let (verb, goal) = match &held {
                Held { leaving: true, .. } => (Verb::Detach, Rest::Attached),
                Held { active: false, .. } => (Verb::Restore, Rest::Attached),
                Held { paused: true, .. } => (Verb::Restore, Rest::Paused),
                Held { .. } => (Verb::Restore, Rest::Active),
            };
            let phase = Phase::Busy(verb, goal);
            let (id, queues) = (held.spec.id.clone(), held.spec.queues);
            // Storage that hangs is seen from here on.
            let reason = BEING_OPENED.into();
            let refused = Some(Arc::new(RefusedDisk { held: held.clone(), reason }));
            let entry = Entry { phase, queues, export: None, refused };
            self.disks().by_id.insert(id.clone(), entry);
            let table = Arc::clone(self);
            let work = move || match table.bring_back(held) {
                Ok(_) => {}
                Err(error) => tracing::error!(disk = id, "its guest waits: {}", error.message),
            };
            if let Err(error) = std::thread::Builder::new().name("restore".into()).spawn(work) {
                tracing::error!("cannot start a thread: {error}");
            }
        }
    }

    /// The disk as it was refused, if it is.
    pub(super) fn refused(&self, id: &str) -> Option<Arc<RefusedDisk>> {
        self.disks().by_id.get(id).and_then(|entry| entry.refused.clone())
    }

    /// A refused disk is to be active: perhaps its image is back.
    pub(super) fn try_again(&self, id: &str, refused: &RefusedDisk) -> Result<DiskReply, RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        if let Some(entry) = disks.by_id.get_mut(id) {
            let begin = entry.phase.begin(Verb::Activate).map_err(wrong_state)?;
            if let Begin::Work(phase) = begin {
                entry.phase = phase;
            }
        }
        drop(disks);
        self.bring_back(Held { active: true, paused: false, ..refused.held.clone() })
    }

    fn bring_back(&self, held: Held) -> Result<DiskReply, RpcError> {
        let id = held.spec.id.clone();
        if held.leaving {
            let left = self.leave_refused(&id);
            self.end(&mut self.disks(), &id, true);
            return Err(failed(left.err().unwrap_or(ExportError::Gone)));
        }
        let brought = self.serve_held(&held);
        let mut disks = self.disks();
        if let Some(entry) = disks.by_id.get_mut(&id) {
            (entry.export, entry.refused) = match &brought {
                Ok(export) => (Some(Arc::clone(export)), None),
                Err(error) => (None, Some(Arc::new(RefusedDisk { held, reason: text(error) }))),
            };
        }
        self.end(&mut disks, &id, brought.is_ok());
        drop(disks);
        brought.map(|export| reply(&export)).map_err(failed)
    }

    fn serve_held(&self, held: &Held) -> Result<Arc<Export>, ExportError> {
        let id = &held.spec.id;
        let export = Export::restore(held, self.kept(id)?, Arc::clone(&self.pool))?;
        self.show(id, &export);
        let serving = if held.active { export.activate() } else { Ok(()) };
        // Nobody is let in before the disk is as its guest left it.
        let serving = serving.and_then(|()| self.hold(&export));
        let serving = serving.and_then(|()| export.serve(export.source(), None));
        match serving {
            Ok(()) => {
                tracing::info!(disk = id, "taken over");
                Ok(export)
            }
            Err(error) => {
                // The socket is held on: front-ends wait in its backlog.
                export.let_go();
                Err(error)
            }
        }
    }

    fn kept(&self, id: &str) -> Result<Kept, ExportError> {
        let os = |source| ExportError::Os { action: "share sockets", source };
        let holding = self.door.disk(id).ok_or(ExportError::Gone)?.map_err(os)?;
        Ok(Kept::from(holding))
    }

    /// Removes the socket of a disk that is not open, and forgets the disk.
    pub(super) fn leave_refused(&self, id: &str) -> Result<(), ExportError> {
        if let Some(listener) = self.kept(id)?.listener {
            drop(Listener::adopt(listener)?);
        }
        self.forget(id);
        Ok(())
    }
}

impl From<HoldError> for ExportError {
    fn from(error: HoldError) -> Self {
        Self::Hold(Box::new(error))
    }
}
