//! NICs, beside the disks of the same process.

use model::nic::{NicLimits, NicSpec, UplinkSpec};
use model::poll::PollChange;
use model::rpc::{NicReply, RpcError};

use super::DiskRegistry;
use crate::limits::of_disks;

impl DiskRegistry {
    /// Plugs a NIC into its network and listens. When this returns, front-ends can connect.
    ///
    /// # Errors
    /// The id is taken, too few open files are left, the network or the socket cannot be had.
    pub fn attach_nic(&self, spec: NicSpec) -> Result<NicReply, RpcError> {
        let disks = self.disks();
        disks.open()?;
        let queues = disks.by_id.values().map(|entry| entry.queues);
        let taken = of_disks(queues, disks.exported_files());
        drop(disks);
        self.nics.attach(spec, self.open_files, taken)
    }

    /// Sends the front-end of a NIC away, closes its socket and forgets it.
    ///
    /// # Errors
    /// No such NIC, or a verb at work.
    pub fn detach_nic(&self, id: &str) -> Result<(), RpcError> {
        self.nics.detach(id)
    }

    /// Polls a NIC otherwise from now on.
    ///
    /// # Errors
    /// No such NIC, or a verb at work.
    pub fn poll_nic(&self, id: &str, change: PollChange) -> Result<NicReply, RpcError> {
        self.nics.poll(id, change)
    }

    /// Has a NIC do what it may from now on.
    ///
    /// # Errors
    /// No such NIC, one that is refused, a verb at work, or a keeper that does not answer.
    pub fn limit_nic(&self, id: &str, limits: NicLimits) -> Result<(), RpcError> {
        self.nics.limit(id, limits)
    }

    /// Brings the host to a network by a TAP device, or takes it away.
    ///
    /// # Errors
    /// No such network, another uplink, or a device that cannot be had.
    pub fn uplink(&self, spec: &UplinkSpec) -> Result<(), RpcError> {
        self.nics.uplink(spec)
    }
}
