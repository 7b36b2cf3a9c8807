//! A disk comes.

use std::sync::Arc;

use model::rpc::{DiskReply, RpcError};
use model::spec::DiskSpec;

use super::{DiskEntry, DiskRegistry, reply, wrong_state};
use crate::error::failed;
use crate::keeper_client::{PreservedDisk, PreservedFds};
use crate::lifecycle::{Phase, StableState, Verb, VerbRefused};
use crate::limits::check_open_files;
use crate::served_disk::{ServedDisk, ServedDiskError};

impl DiskRegistry {
    /// Opens a disk and listens; activates it if the spec says so. When this returns, front-ends
    /// can connect.
    ///
    /// # Errors
    /// The id is taken, too few open files are left, the image or the socket cannot be had.
    pub fn attach(&self, spec: DiskSpec) -> Result<DiskReply, RpcError> {
        let id = spec.id.clone();
        let goal = if spec.activate { StableState::Active } else { StableState::Attached };
        self.admit(&spec, Phase::Busy(Verb::Attach, goal))?;
        let attached = ServedDisk::open(spec, Arc::clone(&self.pool)).and_then(|export| {
            self.show(&id, &export);
            self.serve_new(&export).map(|()| export)
        });
        self.end(&mut self.disks(), &id, attached.is_ok());
        attached.map(|export| reply(&export)).map_err(failed)
    }

    /// From here on a disk that is being attached can be looked at.
    pub(super) fn show(&self, id: &str, export: &Arc<ServedDisk>) {
        let mut disks = self.disks();
        let (closing, polling) = (disks.closing, disks.poll.spec());
        if let Some(entry) = disks.by_id.get_mut(id) {
            export.set_poll_defaults(polling);
            entry.export = Some(Arc::clone(export));
            entry.refused = None;
            if closing {
                export.disconnect_front_end();
            }
        }
    }

    /// Activates a new disk if its spec says so, listens, has it held and serves it. A failure
    /// leaves nothing behind.
    fn serve_new(&self, export: &Arc<ServedDisk>) -> Result<(), ServedDiskError> {
        if export.spec().activate {
            self.join_fence(export);
            export.activate_in_time().inspect_err(|_| self.leave_fence(export))?;
        }
        let serving = self.announce(export).and_then(|()| export.listen());
        let serving = serving.and_then(|()| self.hold(export));
        let serving = serving.and_then(|()| export.serve(export.source(), None));
        if serving.is_err() {
            // Nothing was written, so there is nothing to flush.
            let _ = export.detach();
            self.forget(&export.spec().id);
        }
        serving
    }

    /// Has it held that there will be files of a socket: a worker that dies before it can have the
    /// socket held leaves them to its successor, which removes them.
    fn announce(&self, export: &ServedDisk) -> Result<(), ServedDiskError> {
        let held = PreservedDisk { leaving: true, active: false, ..export.to_preserved() };
        Ok(self.door.preserve_disk(&held, PreservedFds::default())?)
    }

    fn admit(&self, spec: &DiskSpec, phase: Phase) -> Result<(), RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        if let Some(entry) = disks.by_id.get(&spec.id) {
            let refused = entry.phase.begin(Verb::Attach).err().unwrap_or(VerbRefused::Exists);
            return Err(wrong_state(refused));
        }
        let others = disks.by_id.values().map(|entry| entry.queues);
        let exported = disks.exported_files().saturating_add(self.nics.files());
        check_open_files(self.open_files, others, exported, spec.queues).map_err(failed)?;
        let entry =
            DiskEntry { phase, queues: spec.queues, export: None, refused: None, unheld: false };
        disks.by_id.insert(spec.id.clone(), entry);
        Ok(())
    }
}
