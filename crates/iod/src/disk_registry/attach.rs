//! Attach of disks.

use std::sync::Arc;

use model::rpc::{DiskReply, RpcError, code};
use model::spec::DiskSpec;

use super::{DiskEntry, DiskRegistry, reply, wrong_state};
use crate::error::failed;
use crate::keeper_client::{PreservedDisk, PreservedFds};
use crate::lifecycle::{Phase, StableState, Verb, VerbRefused};
use crate::limits::{check_open_files, of_tree};
use crate::open_disk::{OpenError, Sources};
use crate::served_disk::{ServedDisk, ServedDiskError};

impl DiskRegistry {
    /// Opens a disk from `sources` and the paths of its spec, and listens. Activates it if the spec
    /// asks for that. When this returns, front-ends can connect. A disk without a socket is only
    /// opened.
    ///
    /// # Errors
    /// The id is in use, too few open files are free, or the image or socket cannot be opened.
    pub fn attach(&self, spec: DiskSpec, sources: Sources) -> Result<DiskReply, RpcError> {
        let id = spec.id.clone();
        let goal = if spec.activates() { StableState::Active } else { StableState::Attached };
        self.admit(&spec, Phase::Busy(Verb::Attach, goal))?;
        let opened = ServedDisk::open(spec, sources, Arc::clone(&self.pool));
        let attached = opened.and_then(|served_disk| {
            self.show(&id, &served_disk);
            self.serve_new(&served_disk).map(|()| served_disk)
        });
        self.end(&mut self.disks(), &id, attached.is_ok());
        let attached = attached.map_err(|error| match error {
            ServedDiskError::Open(OpenError::FormatNotStated { .. }) => {
                RpcError { code: code::FORMAT_NOT_STATED, message: error.to_string() }
            }
            other => failed(other),
        })?;
        Ok(DiskReply { notes: attached.tree().notes.clone(), ..reply(&attached) })
    }

    /// Publishes a disk that is being attached, so that `stats` shows it.
    pub(super) fn show(&self, id: &str, served_disk: &Arc<ServedDisk>) {
        let mut disks = self.disks();
        let (closing, polling) = (disks.closing, disks.poll.spec());
        if let Some(entry) = disks.by_id.get_mut(id) {
            served_disk.set_poll_defaults(polling);
            entry.served_disk = Some(Arc::clone(served_disk));
            entry.refused = None;
            if closing {
                served_disk.disconnect_front_end();
            }
        }
    }

    /// Activates a new disk if its spec asks for that, listens, preserves the disk and serves it. A
    /// failure leaves nothing behind.
    fn serve_new(&self, served_disk: &Arc<ServedDisk>) -> Result<(), ServedDiskError> {
        if served_disk.spec().activates() {
            self.join_fence(served_disk);
            served_disk.activate_in_time().inspect_err(|_| self.leave_fence(served_disk))?;
        }
        let serving = self.announce(served_disk).and_then(|()| served_disk.listen());
        let serving = serving.and_then(|()| self.hold(served_disk));
        let serving = serving.and_then(|()| served_disk.serve(served_disk.source(), None));
        if serving.is_err() {
            // Nothing was written, so no flush is needed.
            let _ = served_disk.detach();
            self.forget(&served_disk.spec().id);
        }
        serving
    }

    /// Preserves a note that the socket's files will exist. If the worker dies before it can
    /// preserve the socket, its successor removes these files.
    fn announce(&self, served_disk: &ServedDisk) -> Result<(), ServedDiskError> {
        if served_disk.spec().socket.is_none() {
            return Ok(());
        }
        let preserved_disk =
            PreservedDisk { leaving: true, active: false, ..served_disk.to_preserved() };
        Ok(self.keeper_client.preserve_disk(&preserved_disk, PreservedFds::default())?)
    }

    fn admit(&self, spec: &DiskSpec, phase: Phase) -> Result<(), RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        if let Some(entry) = disks.by_id.get(&spec.id) {
            let refused = entry.phase.begin(Verb::Attach).err().unwrap_or(VerbRefused::Exists);
            return Err(wrong_state(refused));
        }
        let taken = self.taken_files(&disks).saturating_add(of_tree(&spec.backend));
        check_open_files(self.open_files, taken, spec.queues).map_err(failed)?;
        disks.by_id.insert(spec.id.clone(), DiskEntry::new(phase, spec));
        drop(disks);
        self.limit_memory_files();
        Ok(())
    }
}
