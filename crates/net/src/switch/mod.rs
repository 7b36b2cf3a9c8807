//! Switch: ports, networks, and forwarding decisions.
//!
//! A switch is one reactor's view: it owns its tables, so that a decision takes no lock. Changes
//! are applied to every reactor's switch. Stations that one switch learns are broadcast to the
//! others ([`FrameVerdict::learn_outcome`], [`Switch::learn`]). All switches share the rate
//! limiters ([`crate::port::RateLimiter`]).

mod decide;
mod forwarding_cache;

pub use decide::{Decision, FrameVerdict};
pub use forwarding_cache::ForwardingEntry;

use crate::mac::Mac;
use crate::port::{DefaultMode, EffectiveMode, PortId, PortPolicy, PortSet};
use crate::table::{LearnOutcome, MacTable, MacTableLimits};
use forwarding_cache::ForwardingCache;

/// Most ports of a switch.
pub const PORTS_MAX: usize = 1024;
/// Most networks of a switch.
pub const NETWORKS_MAX: usize = 256;

/// Number of a network in its switch, below [`NETWORKS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId(pub u16);

/// Policy of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Most bytes of a frame after its Ethernet header and tags.
    pub mtu: u16,
    /// Locking mode of ports that use the network's default.
    pub default: DefaultMode,
    /// Bounds of the network's MAC table.
    pub limits: MacTableLimits,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { mtu: 1500, default: DefaultMode::default(), limits: MacTableLimits::default() }
    }
}

/// Reason why a port or network cannot be set up as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// The port number is too large.
    #[error("port {0} is beyond the {PORTS_MAX} that a switch has")]
    NoSuchPort(u16),
    /// The network does not exist.
    #[error("there is no network {0}")]
    NoSuchNetwork(u16),
}

/// Station that a switch has learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearntStation {
    /// Network of the station.
    pub network: NetworkId,
    /// Port of the station.
    pub port: PortId,
    /// VLAN of the station in the network.
    pub vlan: u16,
    /// Address of the station.
    pub mac: Mac,
    /// Time at which the station last sent a frame, in nanoseconds.
    pub seen_ns: u64,
}

#[derive(Debug)]
struct Network {
    policy: NetworkPolicy,
    members: PortSet,
    mac_table: MacTable,
}

/// One reactor's view of ports and networks.
#[derive(Debug)]
pub struct Switch {
    ports: Box<[Option<PortPolicy>]>,
    networks: Box<[Option<Network>]>,
    /// Cached decisions, cleared whenever something changes that they depend on.
    forwarding_cache: ForwardingCache,
}

impl Default for Switch {
    fn default() -> Self {
        Self::new()
    }
}

impl Switch {
    /// Creates a switch without ports and networks.
    pub fn new() -> Self {
        let ports = (0..PORTS_MAX).map(|_| None).collect();
        let networks = (0..NETWORKS_MAX).map(|_| None).collect();
        Self { ports, networks, forwarding_cache: ForwardingCache::default() }
    }

    /// Creates or changes a network. If the limits of its table change, the table starts empty.
    ///
    /// # Errors
    /// [`SwitchError::NoSuchNetwork`] for a number beyond [`NETWORKS_MAX`].
    pub fn set_network(&mut self, id: NetworkId, policy: NetworkPolicy) -> Result<(), SwitchError> {
        self.forwarding_cache.forget();
        let slot = self.networks.get_mut(usize::from(id.0));
        match slot.ok_or(SwitchError::NoSuchNetwork(id.0))? {
            Some(network) if network.policy.limits == policy.limits => network.policy = policy,
            slot => {
                let members = slot.as_ref().map_or_else(PortSet::default, |old| old.members);
                let mut mac_table = MacTable::new(policy.limits);
                for id in members.iter() {
                    let port = self.ports.get(id.index()).and_then(Option::as_ref);
                    mac_table.set_port_limit(id, port.and_then(|port| port.max_stations));
                }
                *slot = Some(Network { policy, members, mac_table });
            }
        }
        Ok(())
    }

    /// Removes a network and its ports.
    pub fn remove_network(&mut self, id: NetworkId) {
        self.forwarding_cache.forget();
        let Some(network) = self.networks.get_mut(usize::from(id.0)).and_then(Option::take) else {
            return;
        };
        for port in network.members.iter() {
            if let Some(slot) = self.ports.get_mut(port.index()) {
                *slot = None;
            }
        }
    }

    /// Adds or changes a port. If its network, VLAN or lock change, its stations are forgotten.
    ///
    /// # Errors
    /// The network does not exist, or the port number is too large.
    pub fn set_port(&mut self, id: PortId, policy: PortPolicy) -> Result<(), SwitchError> {
        if self.network(policy.network).is_none() {
            return Err(SwitchError::NoSuchNetwork(policy.network.0));
        }
        self.forwarding_cache.forget();
        let slot = self.ports.get(id.index()).ok_or(SwitchError::NoSuchPort(id.0))?;
        let same = |old: &PortPolicy| {
            (old.network, old.vlan, old.locking_mode)
                == (policy.network, policy.vlan, policy.locking_mode)
                && old.allowed_addresses == policy.allowed_addresses
        };
        if !slot.as_ref().is_none_or(same) {
            self.remove_port(id);
        }
        if let Some(network) = self.network_mut(policy.network) {
            network.members.insert(id);
            network.mac_table.set_port_limit(id, policy.max_stations);
        }
        if let Some(slot) = self.ports.get_mut(id.index()) {
            *slot = Some(policy);
        }
        Ok(())
    }

    /// Removes a port and forgets its stations.
    pub fn remove_port(&mut self, id: PortId) {
        self.forwarding_cache.forget();
        let Some(old) = self.ports.get_mut(id.index()).and_then(Option::take) else { return };
        if let Some(network) = self.network_mut(old.network) {
            network.members.remove(id);
            network.mac_table.forget_port(id);
        }
    }

    /// Learns a station that another reactor has learnt.
    pub fn learn(&mut self, port: PortId, vlan: u16, mac: Mac, now_ns: u64) -> LearnOutcome {
        let network = self.port(port).map(|port| port.network);
        let network = network.and_then(|network| self.network_mut(network));
        let learn_outcome = network.map_or(LearnOutcome::NoStation, |network| {
            network.mac_table.learn(vlan, mac, port, now_ns)
        });
        // A new station may have been forgotten here and have moved meanwhile.
        if matches!(learn_outcome, LearnOutcome::Moved(_) | LearnOutcome::New) {
            self.forwarding_cache.forget();
        }
        learn_outcome
    }

    /// Returns the learnt stations, in no order.
    pub fn stations(&self) -> impl Iterator<Item = LearntStation> {
        let networks = (0..).map(NetworkId).zip(&self.networks);
        networks.filter_map(|(id, network)| Some((id, network.as_ref()?))).flat_map(
            |(network, of)| {
                let station = move |(vlan, mac, port, seen_ns)| LearntStation {
                    network,
                    port,
                    vlan,
                    mac,
                    seen_ns,
                };
                of.mac_table.learnt().map(station)
            },
        )
    }

    /// Returns the policy of a port.
    pub fn port(&self, id: PortId) -> Option<&PortPolicy> {
        self.ports.get(id.index())?.as_ref()
    }

    fn network(&self, id: NetworkId) -> Option<&Network> {
        self.networks.get(usize::from(id.0))?.as_ref()
    }

    fn network_mut(&mut self, id: NetworkId) -> Option<&mut Network> {
        self.networks.get_mut(usize::from(id.0))?.as_mut()
    }

    /// Returns whether frames of `vlan` may leave at `port`.
    fn is_open(&self, network: &Network, port: PortId, vlan: u16) -> bool {
        self.port(port).is_some_and(|policy| {
            let closed = matches!(policy.mode(network.policy.default), EffectiveMode::Closed);
            !closed && policy.vlan.carries(vlan)
        })
    }
}

#[cfg(test)]
mod tests;
