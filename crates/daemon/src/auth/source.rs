//! Where somebody comes from, as far as that can be held against him.

use std::net::{IpAddr, Ipv6Addr};

use crate::dispatch::Origin;

/// An address of the network, or all of the Unix socket. A network of IPv6 is one: who has it has
/// all its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientSource {
    /// The Unix socket.
    Unix,
    /// An address of IPv4, or the first of a network of IPv6.
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
