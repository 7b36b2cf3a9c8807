//! Networks by name, and the ports of the one switch that they share.

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
    /// Fabric of the switch, created with the first network. A process without NICs has no links
    /// between its reactors.
    fabric: Option<Arc<Fabric>>,
    by_name: BTreeMap<String, Network>,
    /// Port numbers in use.
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

    /// Iterates over all networks by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Network)> {
        self.by_name.iter()
    }

    /// Returns the network of this name.
    pub(super) fn lan(&self, name: &str) -> Option<&Arc<SwitchNetwork>> {
        self.by_name.get(name).map(|network| &network.switch_network)
    }

    /// Iterates over uplinks by the names of their networks.
    pub(super) fn uplinks_mut(&mut self) -> impl Iterator<Item = (&String, &mut Uplink)> {
        self.by_name.iter_mut().filter_map(|(name, one)| Some((name, one.uplink.as_mut()?)))
    }

    /// Iterates over the uplinks of all networks.
    pub(super) fn uplinks(&self) -> impl Iterator<Item = &Uplink> {
        self.by_name.values().filter_map(|network| network.uplink.as_ref())
    }

    /// Reserves a port for one more NIC in a network. The first NIC creates the network;
    /// [`Self::leave`] releases the port. If `mtu` is absent, the network keeps its MTU.
    ///
    /// # Errors
    /// No port is free, or the network has another MTU.
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

    /// Removes a NIC from a network. The last NIC removes the network and its uplink. Returns true
    /// in that case.
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

    /// Sets the uplink of a network to `tap`, or removes it. If the network is in the requested
    /// state already, nothing changes, except that a failed uplink is replaced.
    ///
    /// # Errors
    /// The network does not exist, it has another uplink, another network uses this device, or the
    /// device is unavailable.
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
        // Do not wait, because this thread serves other callers too. The caller can retry.
        let uplink = Uplink::open(&switch_network, port, tap, Duration::ZERO)?;
        self.insert_uplink(name, port, uplink);
        Ok(())
    }

    /// Adds an uplink to a network at this port.
    pub(super) fn insert_uplink(&mut self, name: &str, port: PortId, uplink: Uplink) {
        self.ports.insert(port);
        if let Some(network) = self.by_name.get_mut(name) {
            network.uplink = Some(uplink);
        }
    }

    /// Returns the network that uses a device.
    fn network_of(&self, tap: &str) -> Option<&str> {
        let is = |uplink: &Uplink| uplink.name() == tap && uplink.failed().is_none();
        let has = |network: &Network| network.uplink.as_ref().is_some_and(is);
        self.by_name.iter().find(|(_, network)| has(network)).map(|(name, _)| name.as_str())
    }

    fn take_away(&mut self, uplink: Option<Uplink>) {
        let Some(uplink) = uplink else { return };
        let port = uplink.port();
        // This returns when no reactor uses the port any more.
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
