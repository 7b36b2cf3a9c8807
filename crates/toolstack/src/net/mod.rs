//! Networks of the host: each is a bridge with a TAP device for the uplink of the switch.
//!
//! A call whose goal is already reached does nothing and succeeds.

mod address_snoop;
mod bridge;
mod host;
mod host_address;
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
pub use host_address::HostAddress;
pub use host_nic::HostNic;

/// Error of the host's network.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A command did not end in time.
    #[error("{0} did not end in time")]
    Late(String),
    /// The device does not exist.
    #[error("this host has no network device {0}")]
    NotThere(String),
    /// The host is reachable through this NIC, so it cannot join a bridge.
    #[error(
        "{card}: this host is reached by its address {address}; put it on the bridge, or on another \
         card, first"
    )]
    Reached {
        /// Name of the NIC.
        card: String,
        /// Address of the host on it.
        address: IpAddr,
    },
    /// A command failed.
    #[error("{what}: {why}")]
    Refused {
        /// Operation that failed.
        what: String,
        /// Output of the command.
        why: String,
    },
}

/// Driver of the host's networks. Device names have at most 15 bytes.
pub trait Net: fmt::Debug + Send + Sync {
    /// Creates a bridge and sets it up.
    fn create_bridge<'a>(
        &'a self,
        bridge: &'a str,
        mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>>;
    /// Checks that no device of another kind has the name of this bridge. Does not wait.
    ///
    /// # Errors
    /// [`NetError::Refused`] if one has, or if the name is invalid.
    fn check_bridge(&self, bridge: &str) -> Result<(), NetError>;
    /// Removes a bridge.
    fn remove_bridge<'a>(&'a self, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// Creates a multi-queue TAP device in a bridge and sets it up.
    fn create_tap<'a>(
        &'a self,
        tap: &'a str,
        bridge: &'a str,
        mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>>;
    /// Removes a TAP device.
    fn remove_tap<'a>(&'a self, tap: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// Returns the Ethernet devices of the host that can join a bridge, by name.
    ///
    /// # Errors
    /// The kernel does not report them, or not in time: it may query the hardware for its speed.
    fn cards(&self) -> BoxFuture<'_, Result<Vec<HostNic>, NetError>>;
    /// Returns the Ethernet device with this address of the host. `None` if no device has it.
    ///
    /// # Errors
    /// As for `cards`.
    fn with_address(&self, address: IpAddr)
    -> BoxFuture<'_, Result<Option<HostAddress>, NetError>>;
    /// Returns a receiver that is notified of changes of network devices or their addresses from
    /// now on. It closes if the kernel sends no notifications.
    fn changes(&self) -> watch::Receiver<()>;
    /// Adds a host NIC to an existing bridge, sets it up, and sets the bridge's MTU.
    ///
    /// A NIC through which the host is reachable is refused ([`NetError::Reached`]), and so is one
    /// in another bridge.
    fn join<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// Removes a host NIC from a bridge and sets it down.
    fn leave<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>>;
    /// Returns the existing TAP devices that this driver created.
    fn taps(&self) -> BoxFuture<'_, Result<Vec<String>, NetError>>;
    /// Starts to note the addresses that an interface with this MAC address claims on this bridge.
    ///
    /// Earlier claims of the interface are dropped. With assigned addresses (`own`), only these
    /// count. An interface without assigned addresses cannot claim those of another: the switch
    /// lets no other send them, so such a claim is forged.
    fn watch<'a>(
        &'a self,
        vif: VifId,
        bridge: &'a str,
        mac: &'a str,
        own: Option<Vec<IpAddr>>,
    ) -> BoxFuture<'a, Result<(), NetError>>;
    /// Changes the assigned addresses of a watched interface.
    fn own(&self, vif: VifId, own: Option<Vec<IpAddr>>);
    /// Stops watching an interface.
    fn unwatch(&self, vif: VifId);
    /// Returns the addresses that a watched interface has claimed, the latest first.
    fn addresses(&self, vif: VifId) -> Vec<IpAddr>;
    /// Returns the receiver of interfaces whose addresses have changed since the start. Only the
    /// first caller gets it.
    fn claims(&self) -> Option<mpsc::Receiver<VifId>>;
}

/// Returns the addresses of an interface under the names that clients know: `0/ip`, `0/ipv4/0`,
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
