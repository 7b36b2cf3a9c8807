//! Networks of the host: a bridge each, and a TAP device in it for the uplink of the switch.
//!
//! A call whose goal is reached does nothing and ends well.

mod address_snoop;
mod bridge;
mod host;
mod host_nic;
pub mod internal;
mod ip;
mod ipv6;
mod rtnetlink;
pub mod sim;
mod tap;

use std::fmt;
use std::net::IpAddr;

use model::id::VifId;
use tokio::sync::{mpsc, watch};

use crate::boxed_future::BoxFuture;
pub use host::HostNet;
pub use host_nic::HostNic;

/// Why the host's network did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A command did not end in time.
    #[error("{0} did not end in time")]
    Late(String),
    /// There is no device of this name.
    #[error("this host has no network device {0}")]
    NotThere(String),
    /// A card by which the host is reached is not for a bridge.
    #[error(
        "{card}: this host is reached by its address {address}; put it on the bridge, or on another \
         card, first"
    )]
    Reached {
        /// Its name.
        card: String,
        /// The host's address there.
        address: IpAddr,
    },
    /// A command failed.
    #[error("{what}: {why}")]
    Refused {
        /// What was tried.
        what: String,
        /// What was said.
        why: String,
    },
}

/// Makes networks. Names of devices have at most 15 bytes.
pub trait Net: fmt::Debug + Send + Sync {
    /// Makes a bridge that is up.
    fn create_bridge<'a>(
        &'a self,
        bridge: &'a str,
        mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>>;
    /// Removes a bridge.
    fn remove_bridge<'a>(&'a self, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// Makes a TAP device with several queues that is up, in a bridge.
    fn create_tap<'a>(
        &'a self,
        tap: &'a str,
        bridge: &'a str,
        mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>>;
    /// Removes a TAP device.
    fn remove_tap<'a>(&'a self, tap: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// Ethernet devices of the host that can be in a bridge, by name.
    ///
    /// # Errors
    /// The kernel does not show them, or not in time: a card may be asked for its speed.
    fn cards(&self) -> BoxFuture<'_, Result<Vec<HostNic>, NetError>>;
    /// Tells each time when network devices of the host, or their addresses, have changed from now on.
    /// Ends where the kernel does not tell.
    fn changes(&self) -> watch::Receiver<()>;
    /// Brings a card into a bridge that is there, and up; with the bridge's largest packet. One by
    /// which the host itself is reached ([`NetError::Reached`]), or that is in another bridge, is refused.
    fn join<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// Takes a card out of a bridge, and down.
    fn leave<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// The TAP devices that are there, of those that this made.
    fn taps(&self) -> BoxFuture<'_, Result<Vec<String>, NetError>>;
    /// From now on addresses are noted that an interface claims on this bridge, as the one with this
    /// hardware address. What it had claimed before is forgotten. With addresses of its `own` it has
    /// these only, and nobody else has them who has none of his own: what a switch lets nobody else
    /// send is forged.
    fn watch<'a>(
        &'a self,
        vif: VifId,
        bridge: &'a str,
        mac: &'a str,
        own: Option<Vec<IpAddr>>,
    ) -> BoxFuture<'a, Result<(), NetError>>;
    /// An interface that is watched has these for its own from now on.
    fn own(&self, vif: VifId, own: Option<Vec<IpAddr>>);
    /// The opposite.
    fn unwatch(&self, vif: VifId);
    /// What an interface that is watched has claimed, the latest first.
    fn addresses(&self, vif: VifId) -> Vec<IpAddr>;
    /// Interfaces whose addresses have changed, from the start on; the first caller gets it.
    fn claims(&self) -> Option<mpsc::Receiver<VifId>>;
}

/// Addresses of an interface under the names by which clients know them: `0/ip`, `0/ipv4/0`,
/// `0/ipv6/0`.
pub fn named(number: u8, v4: Vec<String>, v6: Vec<String>) -> Vec<(String, String)> {
    let first = v4.first().map(|first| (format!("{number}/ip"), first.clone()));
    let all = [("ipv4", v4), ("ipv6", v6)].into_iter().flat_map(|(kind, all)| {
        let all = all.into_iter().enumerate();
        all.map(move |(at, one)| (format!("{number}/{kind}/{at}"), one))
    });
    first.into_iter().chain(all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_names_of_xenserver() {
        let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let named = |v4: &[&str], v6: &[&str]| {
            let all = named(2, texts(v4), texts(v6));
            all.into_iter().map(|(name, one)| format!("{name}={one}")).collect::<Vec<_>>()
        };
        assert_eq!(
            named(&["a", "b"], &["c"]),
            ["2/ip=a", "2/ipv4/0=a", "2/ipv4/1=b", "2/ipv6/0=c"]
        );
        assert_eq!(named(&[], &["c"]), ["2/ipv6/0=c"]);
        assert_eq!(named(&[], &[]), [""; 0]);
    }
}
