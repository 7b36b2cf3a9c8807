//! Source of a login, to which failures are attributed.

use std::net::{IpAddr, Ipv6Addr};

use crate::peer::Origin;

/// Source of a login: an IP address, or the Unix socket as a whole. An IPv6 /64 network counts as
/// one source, because its owner has all of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientSource {
    /// Unix socket.
    Unix,
    /// IPv4 address, or first address of an IPv6 network.
    Address(IpAddr),
}

impl From<Origin> for ClientSource {
    fn from(from: Origin) -> Self {
        match from {
            Origin::Unix => Self::Unix,
            Origin::Tcp(address) => Self::Address(match address.ip().to_canonical() {
                IpAddr::V6(address) => {
                    let network = address.to_bits() & !u128::from(u64::MAX);
                    IpAddr::V6(Ipv6Addr::from_bits(network))
                }
                v4 => v4,
            }),
        }
    }
}
