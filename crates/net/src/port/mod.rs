//! What a port may do: its network, VLAN, lock, and how much it may send.

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

/// How strictly a port is held to its addresses (XenAPI, `VIF.locking_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockingMode {
    /// As its network says for those that say nothing: open or closed.
    #[default]
    NetworkDefault,
    /// It may send anything.
    Unlocked,
    /// It may send only as the addresses that it is given.
    Locked,
    /// Nothing comes in or goes out.
    Disabled,
}

/// What a network says for ports that say nothing (XenAPI, `network.default_locking_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultMode {
    /// They are open.
    #[default]
    Unlocked,
    /// They are closed.
    Disabled,
}

/// What holds for a port now.
#[derive(Clone, Copy, Debug)]
pub enum EffectiveMode<'a> {
    /// It may send anything.
    Open,
    /// It may send what the lock lets pass.
    Locked(&'a AddressLock),
    /// Nothing comes in or goes out.
    Closed,
}

/// What a port is to be. A clone shares the paces: a port's caps hold over all its queues and
/// reactors, each of which has a switch with a clone of this.
#[derive(Clone, Debug)]
pub struct PortPolicy {
    /// Where it is plugged in.
    pub network: NetworkId,
    /// Which VLANs it has.
    pub vlan: Vlan,
    /// How strictly it is held to its addresses.
    pub locking: LockingMode,
    /// What it may send when it is locked.
    pub lock: Arc<AddressLock>,
    /// Bytes a second that it may send.
    pub rate: Option<Arc<RateLimiter>>,
    /// Frames a second that it may send to many: groups and unknown destinations.
    pub flood: Option<Arc<RateLimiter>>,
    /// Most stations that are learnt from it; `None`: as many as from any port of its network.
    pub stations: Option<u32>,
}

impl PortPolicy {
    /// A port without any limit.
    pub fn open(network: NetworkId) -> Self {
        Self {
            network,
            vlan: Vlan::Trunk,
            locking: LockingMode::default(),
            lock: Arc::default(),
            rate: None,
            flood: None,
            stations: None,
        }
    }

    /// The same, locked to addresses.
    ///
    /// # Errors
    /// More addresses than a lock takes.
    pub fn locked(
        self,
        mac: Mac,
        v4: &[Ipv4Addr],
        v6: &[Ipv6Addr],
    ) -> Result<Self, AddressLockError> {
        let lock = Arc::new(AddressLock::new(mac, v4, v6)?);
        Ok(Self { locking: LockingMode::Locked, lock, ..self })
    }

    /// The same in place of `former` at `now_ns`: of caps that are the same, nothing changes, and of others
    /// what was used is.
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

    /// What holds for it in a network with this default.
    pub fn mode(&self, default: DefaultMode) -> EffectiveMode<'_> {
        match (self.locking, default) {
            (LockingMode::Disabled, _) | (LockingMode::NetworkDefault, DefaultMode::Disabled) => {
                EffectiveMode::Closed
            }
            (LockingMode::Locked, _) => EffectiveMode::Locked(&self.lock),
            (LockingMode::Unlocked, _) | (LockingMode::NetworkDefault, DefaultMode::Unlocked) => {
                EffectiveMode::Open
            }
        }
    }
}

#[cfg(test)]
mod tests;
