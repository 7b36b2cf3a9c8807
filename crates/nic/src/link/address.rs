//! Where a frame goes on the other side of a link.

use net::port::PortId;

/// A queue of a port, in one life of that.
///
/// One word, put together in a register: what is stored by parts and then read as a whole waits until everything
/// that was stored before is in the cache, guests' memory too. That was one part in twenty of all that is done for
/// a small frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkAddress(u64);

impl LinkAddress {
    /// `epoch` tells for which life of the port it is made: another one may take other offloads.
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
