//! Who carries out steps.

use std::net::IpAddr;
use std::sync::Arc;

use model::id::{SrId, VifId};
use model::nic::{Locked, NicLimits};

use super::HostMemory;
use crate::boxed_future::BoxFuture;
use crate::hv::Hypervisor;
use crate::net::Net;
use crate::ringway_io::{Datapath, DatapathError, Switch};
use crate::sr::SrDriver;

/// What serves the disks of an SR. It is started when the first disk is attached, and ended with
/// the SR's PBD.
pub trait DatapathProvider: std::fmt::Debug + Send + Sync {
    /// That of this SR.
    fn of(&self, sr: SrId) -> BoxFuture<'_, Result<Arc<dyn Datapath>, DatapathError>>;
    /// Ends that of this SR with all disks that it still serves.
    fn end(&self, sr: SrId) -> BoxFuture<'_, Result<(), DatapathError>>;
}

/// Addresses that an interface has for its own, if the switch lets it have those only.
pub(super) fn own_addresses(limits: &NicLimits) -> Option<Vec<IpAddr>> {
    let NicLimits { locked, disabled, .. } = limits;
    let locked = locked.as_ref().map(|Locked { ipv4, ipv6 }| {
        let ipv4 = ipv4.iter().copied().map(IpAddr::from);
        ipv4.chain(ipv6.iter().copied().map(IpAddr::from)).collect()
    });
    if *disabled { Some(Vec::new()) } else { locked }
}

/// Who carries out steps: one of each for a host.
#[derive(Clone, Debug)]
pub struct Drivers {
    /// Runs guests.
    pub hv: Arc<dyn Hypervisor>,
    /// Serves disks.
    pub io: Arc<dyn DatapathProvider>,
    /// Makes networks.
    pub net: Arc<dyn Net>,
    /// Serves interfaces.
    pub switch: Arc<dyn Switch>,
    /// Tells how much memory the host has.
    pub memory: Arc<dyn HostMemory>,
    /// Knows SRs, by type.
    pub srs: Vec<Arc<dyn SrDriver>>,
}

impl Drivers {
    /// Has an interface do what it may from now on. One that is not plugged gets its limits when it
    /// is.
    ///
    /// # Errors
    /// The switch refuses, or does not answer.
    pub async fn limit_vif(&self, vif: VifId, limits: &NicLimits) -> Result<(), DatapathError> {
        self.net.own(vif, own_addresses(limits));
        self.switch.limit(&vif.to_string(), limits).await
    }

    /// Who knows SRs of this type.
    pub fn sr(&self, kind: &str) -> Option<&Arc<dyn SrDriver>> {
        self.srs.iter().find(|driver| driver.kind() == kind)
    }
}
