//! Disks offered over NBD.

use std::path::Path;

use model::export::ExportSpec;
use model::rpc::{DiskReply, ExportReply, RpcError};

use super::{DiskRegistry, Disks};
use crate::error::failed;
use crate::lifecycle::Verb;
use crate::limits::{check_connections, of_export};
use crate::served_disk::ServedDisk;

impl Disks {
    /// Open files that all exports may take, also those of disks that wait to be had again.
    pub(super) fn exported_files(&self) -> u64 {
        let specs =
            self.by_id.values().flat_map(|entry| match (&entry.served_disk, &entry.refused) {
                (Some(served_disk), _) => served_disk.export_specs(),
                (None, Some(refused)) => refused.preserved_disk.exports.clone(),
                (None, None) => Vec::new(),
            });
        specs.map(|spec| of_export(spec.limit())).fold(0, u64::saturating_add)
    }
}

impl DiskRegistry {
    /// Offers a disk over NBD. When this returns, clients can connect.
    ///
    /// # Errors
    /// No such disk, a verb at work, a socket that is taken; or an export that would write to a
    /// disk that somebody else may write.
    pub fn export(&self, spec: &ExportSpec) -> Result<ExportReply, RpcError> {
        let disks = self.disks();
        disks.open()?;
        let queues = disks.by_id.values().map(|entry| entry.queues);
        let exported = disks.exported_files().saturating_add(self.nics.files());
        check_connections(self.open_files, queues, exported, spec.limit()).map_err(failed)?;
        let offer = |served_disk: &std::sync::Arc<ServedDisk>| served_disk.export(spec);
        let reply = self.run_verb(disks, &spec.id, Verb::Export, offer)?;
        let mut geometry = reply.geometry;
        geometry.read_only |= spec.read_only;
        Ok(ExportReply { id: reply.id, uri: spec.uri(), geometry })
    }

    /// Ends the export of a disk on `socket`, or all of its exports.
    ///
    /// # Errors
    /// No such disk or export, a verb at work, or a flush that failed; the export is gone all the
    /// same.
    pub fn unexport(&self, id: &str, socket: Option<&Path>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Unexport, |served_disk| served_disk.unexport(socket))
    }
}
