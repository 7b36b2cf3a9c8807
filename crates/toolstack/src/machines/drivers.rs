//! Drivers that execute steps.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use model::calibration::StorageProfile;
use model::id::{SrId, VifId};
use model::nic::{Locked, NicLimits};
use tokio::sync::{mpsc, oneshot};

use super::{HostCpus, HostMemory};
use crate::boxed_future::BoxFuture;
use crate::hv::Hypervisor;
use crate::net::Net;
use crate::ringway_io::{Datapath, DatapathError, FullDisks, Switch};
use crate::sr::SrDriver;

/// Provider of each SR's datapath. The first attach starts it, and the unplug of the SR's PBD ends
/// it.
pub trait DatapathProvider: std::fmt::Debug + Send + Sync {
    /// Returns the datapath of this SR.
    fn of(&self, sr: SrId) -> BoxFuture<'_, Result<Arc<dyn Datapath>, DatapathError>>;
    /// Ends the datapath of this SR with all disks that it still serves.
    fn end(&self, sr: SrId) -> BoxFuture<'_, Result<(), DatapathError>>;
    /// Begins to measure the storage of an SR's folder in the background, unless the folder has a
    /// profile or a measurement runs. Returns the receiver of the profile, which is dropped without
    /// one if the storage cannot be measured. [`Self::end`] ends the measurement.
    fn calibrate(&self, sr: SrId, folder: &Path) -> oneshot::Receiver<StorageProfile>;
    /// Returns the receiver of the disks of each SR that wait because its storage is full: the present
    /// ones of a found process, then after each change. Only the first caller gets it.
    fn full_disks(&self) -> Option<mpsc::Receiver<FullDisks>>;
}

/// Returns the addresses assigned to an interface, if its limits permit no others.
pub(super) fn own_addresses(limits: &NicLimits) -> Option<Vec<IpAddr>> {
    let NicLimits { locked, disabled, .. } = limits;
    let locked = locked.as_ref().map(|Locked { ipv4, ipv6 }| {
        let ipv4 = ipv4.iter().copied().map(IpAddr::from);
        ipv4.chain(ipv6.iter().copied().map(IpAddr::from)).collect()
    });
    if *disabled { Some(Vec::new()) } else { locked }
}

/// Drivers of a host.
#[derive(Clone, Debug)]
pub struct Drivers {
    /// Driver of guests.
    pub hv: Arc<dyn Hypervisor>,
    /// Driver of disks.
    pub io: Arc<dyn DatapathProvider>,
    /// Driver of the host's networks.
    pub net: Arc<dyn Net>,
    /// Driver of network interfaces.
    pub switch: Arc<dyn Switch>,
    /// Source of the host's memory size.
    pub memory: Arc<dyn HostMemory>,
    /// Source of the host's CPU time, by which machines boot. `None`: they boot at once.
    pub cpus: Option<Arc<dyn HostCpus>>,
    /// Drivers of SRs, one for each type.
    pub srs: Vec<Arc<dyn SrDriver>>,
}

impl Drivers {
    /// Applies new limits to an interface. An unplugged interface gets its limits when it is
    /// plugged.
    ///
    /// # Errors
    /// The switch refuses, or does not answer.
    pub async fn limit_vif(&self, vif: VifId, limits: &NicLimits) -> Result<(), DatapathError> {
        self.net.own(vif, own_addresses(limits));
        self.switch.limit(&vif.to_string(), limits).await
    }

    /// Returns the driver of SRs of this type.
    pub fn sr(&self, kind: &str) -> Option<&Arc<dyn SrDriver>> {
        self.srs.iter().find(|driver| driver.kind() == kind)
    }
}
