//! Who carries out steps.

use std::sync::Arc;

use model::id::SrId;

use super::HostMemory;
use crate::fut::Fut;
use crate::hv::Hypervisor;
use crate::io::{Datapath, IoError, Switch};
use crate::net::Net;
use crate::sr::SrDriver;

/// What serves the disks of an SR. It is started when the first disk is attached, and ended with
/// the SR's PBD.
pub trait Datapaths: std::fmt::Debug + Send + Sync {
    /// That of this SR.
    fn of(&self, sr: SrId) -> Fut<'_, Result<Arc<dyn Datapath>, IoError>>;
    /// Ends that of this SR with all disks that it still serves.
    fn end(&self, sr: SrId) -> Fut<'_, Result<(), IoError>>;
}

/// Who carries out steps: one of each for a host.
#[derive(Clone, Debug)]
pub struct Drivers {
    /// Runs guests.
    pub hv: Arc<dyn Hypervisor>,
    /// Serves disks.
    pub io: Arc<dyn Datapaths>,
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
    /// Who knows SRs of this type.
    pub fn sr(&self, kind: &str) -> Option<&Arc<dyn SrDriver>> {
        self.srs.iter().find(|driver| driver.kind() == kind)
    }
}
