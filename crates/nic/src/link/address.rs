//! Destination of a frame on the other side of a link.

use net::port::PortId;

/// Queue of a port, in one incarnation of the port.
///
/// A single word, composed in a register. A value that is stored in parts and then read as a whole
/// has to wait. The CPU first completes all earlier stores to the cache, including those to guests'
/// memory. That took one twentieth of the time for a small frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkAddress(u64);

impl LinkAddress {
    /// Creates an address. `epoch` is the incarnation of the port: another one may accept other
    /// offloads.
    #[inline]
    pub(crate) fn new(port: PortId, queue: u16, epoch: u32) -> Self {
        Self(u64::from(epoch) << 32 | u64::from(queue) << 16 | u64::from(port.0))
    }

    pub(crate) fn port(self) -> PortId {
        PortId(self.0 as u16)
    }

    pub(crate) fn queue(self) -> u16 {
        (self.0 >> 16) as u16
    }

    pub(crate) fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn pack(self) -> [u8; 8] {
        self.0.to_ne_bytes()
    }

    pub(super) fn unpack(raw: [u8; 8]) -> Self {
        Self(u64::from_ne_bytes(raw))
    }
}
