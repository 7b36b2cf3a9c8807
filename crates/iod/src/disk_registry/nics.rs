//! Calls that concern the NICs of the same process.

use model::nic::{NicLimits, NicSpec, UplinkSpec};
use model::poll::PollChange;
use model::rpc::{NicReply, RpcError};

use super::DiskRegistry;

impl DiskRegistry {
    /// Plugs a NIC into its network and listens. When this returns, front-ends can connect.
    ///
    /// # Errors
    /// The id is in use, too few open files are free, or the network or socket is unavailable.
    pub fn attach_nic(&self, spec: NicSpec) -> Result<NicReply, RpcError> {
        let disks = self.disks();
        disks.open()?;
        let taken = self.taken_files(&disks);
        drop(disks);
        let attached = self.nics.attach(spec, self.open_files, taken);
        self.limit_memory_files();
        attached
    }

    /// Disconnects the front-end of a NIC, closes its socket and removes it from the registry.
    ///
    /// # Errors
    /// No such NIC, or another verb is running.
    pub fn detach_nic(&self, id: &str) -> Result<(), RpcError> {
        self.nics.detach(id)
    }

    /// Changes the polling of a NIC.
    ///
    /// # Errors
    /// No such NIC, or another verb is running.
    pub fn poll_nic(&self, id: &str, change: PollChange) -> Result<NicReply, RpcError> {
        self.nics.poll(id, change)
    }

    /// Replaces the limits of a NIC.
    ///
    /// # Errors
    /// No such NIC, the NIC is refused, another verb is running, or the keeper does not answer.
    pub fn limit_nic(&self, id: &str, limits: NicLimits) -> Result<(), RpcError> {
        self.nics.limit(id, limits)
    }

    /// Connects the host to a network by a TAP device, or disconnects it.
    ///
    /// # Errors
    /// No such network, the network has another uplink, or the device is unavailable.
    pub fn uplink(&self, spec: &UplinkSpec) -> Result<(), RpcError> {
        self.nics.uplink(spec)
    }
}
