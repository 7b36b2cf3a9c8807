//! Networks by name, and the ports of the one switch that they all are in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::nic::DEFAULT_MTU;
use net::port::{PortId, PortSet};
use net::switch::{NETWORKS_MAX, NetworkId, PORTS_MAX};
use nic::Fabric;

use super::error::NicsError;
use crate::pool::Pool;
use crate::served_nic::{SwitchNetwork, Uplink, switch};

/// Networks by name.
#[derive(Debug)]
pub(super) struct Networks {
    pool: Arc<Pool>,
    /// Made for the first network: a process of disks alone has no links between its reactors.
    fabric: Option<Arc<Fabric>>,
    by_name: BTreeMap<String, Network>,
    /// Numbers that are taken.
    ports: PortSet,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) switch_network: Arc<SwitchNetwork>,
    pub(super) nics: usize,
    pub(super) uplink: Option<Uplink>,
}

impl Networks {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, fabric: None, by_name: BTreeMap::new(), ports: PortSet::default() }
    }

    /// All of them, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Network)> {
        self.by_name.iter()
    }

    /// A network of this name.
    pub(super) fn lan(&self, name: &str) -> Option<&Arc<SwitchNetwork>> {
        self.by_name.get(name).map(|network| &network.switch_network)
    }

    /// Uplinks, by the names of their networks.
    pub(super) fn uplinks_mut(&mut self) -> impl Iterator<Item = (&String, &mut Uplink)> {
        self.by_name.iter_mut().filter_map(|(name, one)| Some((name, one.uplink.as_mut()?)))
    }

    /// Uplinks of all networks.
    pub(super) fn uplinks(&self) -> impl Iterator<Item = &Uplink> {
        self.by_name.values().filter_map(|network| network.uplink.as_ref())
    }

    /// A place for one NIC more in a network, which is made if it is the first; [`Self::leave`] gives
    /// it back. `mtu`: as it is when absent.
    ///
    /// # Errors
    /// There is no room, or the network has another MTU.
    pub(super) fn join(
        &mut self,
        name: &str,
        mtu: Option<u16>,
    ) -> Result<(Arc<SwitchNetwork>, PortId), NicsError> {
        let port = self.free_port()?;
        let switch_network = match self.by_name.get_mut(name) {
            Some(network) => {
                let has = network.switch_network.mtu();
                if mtu.is_some_and(|mtu| mtu != has) {
                    return Err(NicsError::Mtu { network: name.into(), has });
                }
                network.nics += 1;
                Arc::clone(&network.switch_network)
            }
            None => {
                let switch_network = self.make(mtu.unwrap_or(DEFAULT_MTU))?;
                let network =
                    Network { switch_network: Arc::clone(&switch_network), nics: 1, uplink: None };
                self.by_name.insert(name.into(), network);
                switch_network
            }
        };
        self.ports.insert(port);
        Ok((switch_network, port))
    }

    /// A NIC is unplugged from a network. The last takes the network with it, and the uplink of that;
    /// true: so it was.
    pub(super) fn leave(&mut self, name: &str, port: PortId) -> bool {
        self.ports.remove(port);
        let Some(network) = self.by_name.get_mut(name) else { return false };
        network.nics -= 1;
        if network.nics > 0 {
            return false;
        }
        if let Some(Network { switch_network: lan, uplink, .. }) = self.by_name.remove(name) {
            self.take_away(uplink);
            lan.remove();
        }
        true
    }

    /// Gives a network the uplink `tap`, or none. What is so already is left as it is, but for an
    /// uplink that has failed.
    ///
    /// # Errors
    /// There is no such network; it has another uplink, or another network has this one; the device
    /// cannot be had.
    pub(super) fn set_uplink(&mut self, name: &str, tap: Option<&str>) -> Result<(), NicsError> {
        let no_network = || NicsError::NoSuchNetwork(name.into());
        let network = self.by_name.get_mut(name).ok_or_else(no_network)?;
        let switch_network = Arc::clone(&network.switch_network);
        if let Some(uplink) = &network.uplink
            && let (Some(tap), None) = (tap, uplink.failed())
        {
            let has = uplink.name();
            let other = || NicsError::HasUplink { network: name.into(), tap: has.into() };
            return if tap == has { Ok(()) } else { Err(other()) };
        }
        let former = network.uplink.take();
        self.take_away(former);
        let Some(tap) = tap else { return Ok(()) };
        if let Some(network) = self.network_of(tap) {
            return Err(NicsError::TapTaken { tap: tap.into(), network: network.into() });
        }
        let port = self.free_port()?;
        // Others are served by this thread too. Who asks can ask again.
        let uplink = Uplink::open(&switch_network, port, tap, Duration::ZERO)?;
        self.insert_uplink(name, port, uplink);
        Ok(())
    }

    /// A network has this uplink, at this port.
    pub(super) fn insert_uplink(&mut self, name: &str, port: PortId, uplink: Uplink) {
        self.ports.insert(port);
        if let Some(network) = self.by_name.get_mut(name) {
            network.uplink = Some(uplink);
        }
    }

    /// Where a device is in use.
    fn network_of(&self, tap: &str) -> Option<&str> {
        let is = |uplink: &Uplink| uplink.name() == tap && uplink.failed().is_none();
        let has = |network: &Network| network.uplink.as_ref().is_some_and(is);
        self.by_name.iter().find(|(_, network)| has(network)).map(|(name, _)| name.as_str())
    }

    fn take_away(&mut self, uplink: Option<Uplink>) {
        let Some(uplink) = uplink else { return };
        let port = uplink.port();
        // Returns when nobody knows the port any more.
        drop(uplink);
        self.ports.remove(port);
    }

    pub(super) fn free_port(&self) -> Result<PortId, NicsError> {
        let mut all = (0..PORTS_MAX as u16).map(PortId);
        all.find(|port| !self.ports.contains(*port)).ok_or(NicsError::NoPort)
    }

    fn make(&mut self, mtu: u16) -> Result<Arc<SwitchNetwork>, NicsError> {
        let taken: BTreeSet<_> =
            self.by_name.values().map(|network| network.switch_network.number()).collect();
        let mut all = (0..NETWORKS_MAX as u16).map(NetworkId);
        let number = all.find(|number| !taken.contains(number)).ok_or(NicsError::NoNetwork)?;
        let fabric = match &self.fabric {
            Some(fabric) => Arc::clone(fabric),
            None => Arc::clone(self.fabric.insert(switch(&self.pool)?)),
        };
        Ok(SwitchNetwork::on(fabric, Arc::clone(&self.pool), number, mtu)?)
    }
}
