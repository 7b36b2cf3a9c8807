//! Address lock: restricts a locked port to frames from its own addresses.
//!
//! The rules are those of XenServer's locked mode, with fewer holes. A guest may request an address
//! by DHCP for itself only, and may test an address of its own for duplicates. It cannot hide a
//! message behind headers, fragments, or a checksum that overwrites checked bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::drop_reason::Reason;
use crate::frame::{Arp, Frame, Ip, Neighbour, NetworkLayer, Solicited, TransportLayer, Udp};
use crate::header::{Checksum, Header, TCP_CHECKSUM};
use crate::mac::Mac;

/// Most addresses of each kind.
pub const ADDRESSES_MAX: usize = 1024;

/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: u16 = 6;
const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;
/// Messages of routers and mobile hosts only (RFC 4861, 4.2, 4.5; RFC 6275, 6.7, 6.8; RFC 4286).
const ROUTERS: [u8; 7] = [134, 137, 146, 147, 151, 152, 153];

/// Addresses that a port may send from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressLock {
    mac: Mac,
    v4: Box<[Ipv4Addr]>,
    v6: Box<[Ipv6Addr]>,
}

/// Error for a lock with too many addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} addresses are more than the {ADDRESSES_MAX} that a port may be locked to")]
pub struct AddressLockError(pub usize);

impl AddressLock {
    /// Creates a lock to these addresses. Without addresses of a kind, that kind is not allowed.
    ///
    /// # Errors
    /// Fails for more than [`ADDRESSES_MAX`] of a kind.
    pub fn new(mac: Mac, v4: &[Ipv4Addr], v6: &[Ipv6Addr]) -> Result<Self, AddressLockError> {
        let most = v4.len().max(v6.len());
        if most > ADDRESSES_MAX {
            return Err(AddressLockError(most));
        }
        let (mut v4, mut v6) = (v4.to_vec(), v6.to_vec());
        v4.sort_unstable();
        v6.sort_unstable();
        Ok(Self { mac, v4: v4.into(), v6: v6.into() })
    }

    /// Checks whether the port may send a frame.
    ///
    /// # Errors
    /// Reason why not.
    pub fn check(&self, frame: &Frame<'_>, header: &Header) -> Result<(), Reason> {
        if frame.src != self.mac {
            return Err(Reason::LockedMac);
        }
        match frame.net() {
            NetworkLayer::Opaque | NetworkLayer::Broken => return Err(Reason::LockedProtocol),
            NetworkLayer::Arp(arp) => self.arp(arp)?,
            NetworkLayer::V4(ip) => self.v4(&ip)?,
            NetworkLayer::V6(ip) => self.v6(&ip)?,
        }
        checksum(frame, header)
    }

    fn arp(&self, arp: Arp) -> Result<(), Reason> {
        let address = arp.address.is_unspecified() || self.has_v4(arp.address);
        let own = arp.mac == self.mac && address;
        own.then_some(()).ok_or(Reason::LockedArp)
    }

    fn v4(&self, ip: &Ip<Ipv4Addr>) -> Result<(), Reason> {
        let dhcp = match ip.transport_layer {
            TransportLayer::Udp(Udp { src: DHCP_CLIENT, dst: DHCP_SERVER, bootp }) => Some(bootp),
            _ => None,
        };
        // The guest requests for itself, whatever address it has.
        if let Some(bootp) = dhcp
            && !bootp.is_some_and(|message| !message.reply && message.client == self.mac)
        {
            return Err(Reason::LockedProtocol);
        }
        let asks = dhcp.is_some() && ip.src.is_unspecified();
        (asks || self.has_v4(ip.src)).then_some(()).ok_or(Reason::LockedAddress)
    }

    fn v6(&self, ip: &Ip<Ipv6Addr>) -> Result<(), Reason> {
        match ip.transport_layer {
            TransportLayer::Broken | TransportLayer::Unseen => return Err(Reason::LockedProtocol),
            TransportLayer::Icmp6(kind) if ROUTERS.contains(&kind) => {
                return Err(Reason::LockedNeighbour);
            }
            // No host accepts it in fragments (RFC 6980).
            TransportLayer::Neighbour(_) if ip.fragment => return Err(Reason::LockedNeighbour),
            TransportLayer::Neighbour(message) => return self.neighbour(ip.src, message),
            _ => {}
        }
        self.has_v6(ip.src).then_some(()).ok_or(Reason::LockedAddress)
    }

    fn neighbour(&self, src: Ipv6Addr, message: Neighbour) -> Result<(), Reason> {
        let mac = message.mac.is_none_or(|mac| mac == self.mac) && !message.unclear;
        let sender = self.has_v6(src);
        let own = match message.says {
            Solicited::Routers => sender || src.is_unspecified(),
            // A host without an address tests one that it may have (RFC 4862, 5.4).
            Solicited::Owner => sender || src.is_unspecified() && self.has_v6(message.target),
            Solicited::Mine => sender && self.has_v6(message.target),
        };
        (mac && own).then_some(()).ok_or(Reason::LockedNeighbour)
    }

    fn has_v4(&self, address: Ipv4Addr) -> bool {
        self.v4.binary_search(&address).is_ok()
    }

    fn has_v6(&self, address: Ipv6Addr) -> bool {
        self.v6.binary_search(&address).is_ok()
    }
}

/// Checks that a partial checksum will only overwrite a checksum field.
fn checksum(frame: &Frame<'_>, header: &Header) -> Result<(), Reason> {
    let Checksum::Partial { start, offset } = header.checksum() else { return Ok(()) };
    let fits = match frame.transport() {
        Some((at, TransportLayer::Tcp(_))) => (start, offset) == (at, TCP_CHECKSUM),
        Some((at, TransportLayer::Udp(_))) => (start, offset) == (at, UDP_CHECKSUM),
        _ => false,
    };
    fits.then_some(()).ok_or(Reason::LockedChecksum)
}

#[cfg(test)]
mod tests;
