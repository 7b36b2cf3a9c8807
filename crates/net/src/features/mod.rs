//! What a port offers, and what its driver may accept (virtio 1.2, 5.1.3).

mod roles;

pub use roles::{QueueLayout, QueueRole};

use crate::header::Offloads;

/// Feature bits.
pub mod feature {
    /// The driver may leave checksums to us.
    pub const CSUM: u64 = 1 << 0;
    /// We may leave checksums to the driver.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The configuration has an MTU.
    pub const MTU: u64 = 1 << 3;
    /// The configuration has an address.
    pub const MAC: u64 = 1 << 5;
    /// The driver takes TCP over IPv4 unsegmented.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver takes TCP over IPv6 unsegmented.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver takes unsegmented TCP with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// We take TCP over IPv4 unsegmented.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// We take TCP over IPv6 unsegmented.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// We take unsegmented TCP with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A received frame may use several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The configuration tells whether there is a link.
    pub const STATUS: u64 = 1 << 16;
    /// There is a control queue.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// The control queue takes receive modes.
    pub const CTRL_RX: u64 = 1 << 18;
    /// The control queue takes filters of VLANs.
    pub const CTRL_VLAN: u64 = 1 << 19;
    /// The driver announces itself when it is asked to.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// Several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// The control queue takes an address.
    pub const CTRL_MAC_ADDR: u64 = 1 << 23;
    /// Indirect descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Event indices.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
}

use feature::*;

/// What a port is to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedFeatures {
    /// Checksums and segmentation, both ways.
    pub offloads: bool,
    /// Frames over several buffers.
    pub mergeable: bool,
    /// Pairs of queues; more than one needs a control queue.
    pub pairs: u16,
    /// The control queue. A front-end that answers it itself (QEMU) leaves it out of what it
    /// accepts; one that hands us all rings (User-Mode Linux) does not.
    pub control: bool,
    /// An MTU in the configuration.
    pub mtu: bool,
}

/// Bits that make a feature useless without one of the others (virtio 1.2, 5.1.3.1). What needs the
/// control queue is not among them: whoever accepts it without that queue answers the queue itself.
const NEEDS: [(u64, u64); 6] = [
    (GUEST_TSO4, GUEST_CSUM),
    (GUEST_TSO6, GUEST_CSUM),
    (GUEST_ECN, GUEST_TSO4 | GUEST_TSO6),
    (HOST_TSO4, CSUM),
    (HOST_TSO6, CSUM),
    (HOST_ECN, HOST_TSO4 | HOST_TSO6),
];

const OFFLOADS: u64 =
    CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | HOST_TSO4 | HOST_TSO6 | HOST_ECN;

impl OfferedFeatures {
    /// The bits. Those that a control queue would be needed for are left out without one.
    pub fn bits(&self) -> u64 {
        let when = |wanted: bool, bits: u64| if wanted { bits } else { 0 };
        let pairs = when(self.pairs > 1, MQ);
        let control = when(self.control, CTRL_VQ | CTRL_RX | CTRL_MAC_ADDR | pairs);
        let always = MAC | STATUS | INDIRECT_DESC | EVENT_IDX | VERSION_1;
        let offloads = when(self.offloads, OFFLOADS);
        always | control | offloads | when(self.mergeable, MRG_RXBUF) | when(self.mtu, MTU)
    }

    /// Checks what a driver has accepted.
    ///
    /// # Errors
    /// Bits that were not offered, or one without what it needs.
    pub fn accept(&self, bits: u64) -> Result<AcceptedFeatures, FeatureError> {
        // Bits above and beyond the device's are the transport's and its session's.
        let strange = bits & DEVICE & !self.bits();
        if strange != 0 {
            return Err(FeatureError::NotOffered(strange));
        }
        for (feature, needs) in NEEDS {
            if bits & feature != 0 && bits & needs == 0 {
                return Err(FeatureError::Needs { feature, needs });
            }
        }
        Ok(AcceptedFeatures(bits))
    }
}

/// Bits that a device type may define (virtio 1.2, 2.2).
const DEVICE: u64 = ((1 << 24) - 1) | (!0 << 50);

/// Why what a driver accepted cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    /// These bits were not offered.
    #[error("feature bits {0:#x} were not offered")]
    NotOffered(u64),
    /// A feature without any that it needs.
    #[error("feature bit {feature:#x} needs one of {needs:#x}")]
    Needs {
        /// The feature.
        feature: u64,
        /// What it needs one of.
        needs: u64,
    },
}

/// What a driver has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedFeatures(u64);

impl AcceptedFeatures {
    /// All of these were accepted.
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// What the driver may leave to whoever gets its frames.
    pub fn sends(self) -> Offloads {
        Offloads {
            checksum: self.has(CSUM),
            tcp4: self.has(HOST_TSO4),
            tcp6: self.has(HOST_TSO6),
            ecn: self.has(HOST_ECN),
            // A driver's word for a checksum is nothing to pass on (virtio 1.2, 5.1.6.2.1).
            vouches: false,
        }
    }

    /// What may be left to the driver.
    pub fn receives(self) -> Offloads {
        Offloads {
            checksum: self.has(GUEST_CSUM),
            tcp4: self.has(GUEST_TSO4),
            tcp6: self.has(GUEST_TSO6),
            ecn: self.has(GUEST_ECN),
            vouches: self.has(GUEST_CSUM),
        }
    }
}

#[cfg(test)]
mod tests;
