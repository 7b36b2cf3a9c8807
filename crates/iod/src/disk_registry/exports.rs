//! NBD exports of disks.

use std::path::Path;

use model::export::ExportSpec;
use model::rpc::{DiskReply, ExportReply, RpcError};

use super::{DiskRegistry, Disks};
use crate::error::failed;
use crate::lifecycle::Verb;
use crate::limits::{check_connections, of_export};
use crate::served_disk::ServedDisk;

impl Disks {
    /// Returns the open files that all exports may use, including those of refused disks.
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
    /// Exports a disk over NBD. When this returns, clients can connect.
    ///
    /// # Errors
    /// No such disk, another verb is running, the socket is in use, or the export is writable and
    /// another program may write to the disk.
    pub fn export(&self, spec: &ExportSpec) -> Result<ExportReply, RpcError> {
        let disks = self.disks();
        disks.open()?;
        let taken = self.taken_files(&disks);
        check_connections(self.open_files, taken, spec.limit()).map_err(failed)?;
        let offer = |served_disk: &std::sync::Arc<ServedDisk>| served_disk.export(spec);
        let reply = self.run_verb(disks, &spec.id, Verb::Export, offer)?;
        let mut geometry = reply.geometry;
        geometry.read_only |= spec.read_only;
        Ok(ExportReply { id: reply.id, uri: spec.uri(), geometry })
    }

    /// Ends the export of a disk on `socket`, or all of its exports.
    ///
    /// # Errors
    /// No such disk or export, another verb is running, or a flush failed. After a failed flush,
    /// the export is removed all the same.
    pub fn unexport(&self, id: &str, socket: Option<&Path>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Unexport, |served_disk| served_disk.unexport(socket))
    }
}
