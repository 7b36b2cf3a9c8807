//! Policy of a port: network, VLAN, address lock, and rate limits.

mod address_lock;
mod rate_limiter;
mod set;
mod vlan;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub use address_lock::{ADDRESSES_MAX, AddressLock, AddressLockError};
pub use rate_limiter::{Rate, RateLimiter};
pub use set::{PortId, PortSet};
pub use vlan::{TagAction, Vlan, VlanError, VlanId};

use crate::mac::Mac;
use crate::switch::NetworkId;

/// Locking mode of a port (XenAPI, `VIF.locking_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockingMode {
    /// The default of the port's network: open or closed.
    #[default]
    NetworkDefault,
    /// The port may send anything.
    Unlocked,
    /// The port may send only from the addresses of its lock.
    Locked,
    /// The port neither sends nor receives.
    Disabled,
}

/// Default locking mode of a network (XenAPI, `network.default_locking_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultMode {
    /// Ports with the default mode are open.
    #[default]
    Unlocked,
    /// Ports with the default mode are closed.
    Disabled,
}

/// Locking mode that applies to a port now.
#[derive(Clone, Copy, Debug)]
pub enum EffectiveMode<'a> {
    /// The port may send anything.
    Open,
    /// The port may send the frames that the lock admits.
    Locked(&'a AddressLock),
    /// The port neither sends nor receives.
    Closed,
}

/// Policy of a port. A clone shares the rate limiters: a port's limits apply across all its queues
/// and reactors, each of which has a switch with a clone of this.
#[derive(Clone, Debug)]
pub struct PortPolicy {
    /// Network of the port.
    pub network: NetworkId,
    /// VLANs of the port.
    pub vlan: Vlan,
    /// Locking mode.
    pub locking_mode: LockingMode,
    /// Addresses of the port when it is locked.
    pub allowed_addresses: Arc<AddressLock>,
    /// Limit of the bytes that the port may send a second.
    pub rate: Option<Arc<RateLimiter>>,
    /// Limit of the flooded frames that the port may send a second: multicasts and unknown
    /// destinations.
    pub flood: Option<Arc<RateLimiter>>,
    /// Most stations that are learnt from the port; `None` for the limit of its network's ports.
    pub max_stations: Option<u32>,
}

impl PortPolicy {
    /// Returns the policy of a port without limits.
    pub fn open(network: NetworkId) -> Self {
        Self {
            network,
            vlan: Vlan::Trunk,
            locking_mode: LockingMode::default(),
            allowed_addresses: Arc::default(),
            rate: None,
            flood: None,
            max_stations: None,
        }
    }

    /// Locks the port to these addresses.
    ///
    /// # Errors
    /// Fails for more addresses than a lock supports.
    pub fn locked(
        self,
        mac: Mac,
        v4: &[Ipv4Addr],
        v6: &[Ipv6Addr],
    ) -> Result<Self, AddressLockError> {
        let allowed_addresses = Arc::new(AddressLock::new(mac, v4, v6)?);
        Ok(Self { locking_mode: LockingMode::Locked, allowed_addresses, ..self })
    }

    /// Continues the limits of `former` at `now_ns`. Equal limits are shared with it; others start
    /// with the usage so far.
    #[must_use]
    pub fn following(self, former: &Self, now_ns: u64) -> Self {
        let follow =
            |new: Option<Arc<RateLimiter>>, old: &Option<Arc<RateLimiter>>| match (new, old) {
                (Some(new), Some(old)) if new.rate() == old.rate() => Some(Arc::clone(old)),
                (Some(new), Some(old)) => {
                    new.follow(old, now_ns);
                    Some(new)
                }
                (new, _) => new,
            };
        let (rate, flood) = (follow(self.rate, &former.rate), follow(self.flood, &former.flood));
        Self { rate, flood, ..self }
    }

    /// Returns the locking mode that applies in a network with this default.
    pub fn mode(&self, default: DefaultMode) -> EffectiveMode<'_> {
        match (self.locking_mode, default) {
            (LockingMode::Disabled, _) | (LockingMode::NetworkDefault, DefaultMode::Disabled) => {
                EffectiveMode::Closed
            }
            (LockingMode::Locked, _) => EffectiveMode::Locked(&self.allowed_addresses),
            (LockingMode::Unlocked, _) | (LockingMode::NetworkDefault, DefaultMode::Unlocked) => {
                EffectiveMode::Open
            }
        }
    }
}

#[cfg(test)]
mod tests;
