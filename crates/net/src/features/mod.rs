//! Features that a port offers, and that its driver may accept (virtio 1.2, 5.1.3).

mod roles;

pub use roles::{QueueLayout, QueueRole};

use crate::header::Offloads;

/// Feature bits.
pub mod feature {
    /// The device accepts frames with a partial checksum.
    pub const CSUM: u64 = 1 << 0;
    /// The driver accepts frames with a partial checksum.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The configuration space has an MTU.
    pub const MTU: u64 = 1 << 3;
    /// The configuration space has an address.
    pub const MAC: u64 = 1 << 5;
    /// The driver accepts unsegmented TCP over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver accepts unsegmented TCP over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver accepts unsegmented TCP with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device accepts unsegmented TCP over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device accepts unsegmented TCP over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device accepts unsegmented TCP with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A received frame may span several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The configuration space reports the link state.
    pub const STATUS: u64 = 1 << 16;
    /// The device has a control queue.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// The control queue supports receive modes.
    pub const CTRL_RX: u64 = 1 << 18;
    /// The control queue supports VLAN filters.
    pub const CTRL_VLAN: u64 = 1 << 19;
    /// The driver announces itself on request.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// The device has several queue pairs.
    pub const MQ: u64 = 1 << 22;
    /// The control queue can set the address.
    pub const CTRL_MAC_ADDR: u64 = 1 << 23;
    /// The device supports indirect descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// The device supports event indices.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The device is not a legacy device.
    pub const VERSION_1: u64 = 1 << 32;
}

use feature::*;

/// Features that a port offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedFeatures {
    /// Checksum and segmentation offloads, in both directions.
    pub offloads: bool,
    /// Received frames over several buffers.
    pub mergeable: bool,
    /// Number of queue pairs; more than one needs a control queue.
    pub pairs: u16,
    /// True for a control queue. A front-end that implements the control queue itself (QEMU) does
    /// not accept this feature. A front-end that passes all rings to the device (User-Mode Linux)
    /// accepts it.
    pub control: bool,
    /// True for an MTU in the configuration space.
    pub mtu: bool,
}

/// Bits that a feature needs at least one of (virtio 1.2, 5.1.3.1). Features that need the control
/// queue are not listed: a front-end that accepts them without that queue implements the queue
/// itself.
const NEEDS: [(u64, u64); 6] = [
    (GUEST_TSO4, GUEST_CSUM),
    (GUEST_TSO6, GUEST_CSUM),
    (GUEST_ECN, GUEST_TSO4 | GUEST_TSO6),
    (HOST_TSO4, CSUM),
    (HOST_TSO6, CSUM),
    (HOST_ECN, HOST_TSO4 | HOST_TSO6),
];

/// Offloads that a driver may use when it sends.
const SENDS: u64 = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN;

const OFFLOADS: u64 = SENDS | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN;

impl OfferedFeatures {
    /// Returns the feature bits. Without a control queue, the bits that need one are left out.
    pub fn bits(&self) -> u64 {
        let when = |wanted: bool, bits: u64| if wanted { bits } else { 0 };
        let pairs = when(self.pairs > 1, MQ);
        let control = when(self.control, CTRL_VQ | CTRL_RX | CTRL_MAC_ADDR | pairs);
        let always = MAC | STATUS | INDIRECT_DESC | EVENT_IDX | VERSION_1;
        let offloads = when(self.offloads, OFFLOADS);
        always | control | offloads | when(self.mergeable, MRG_RXBUF) | when(self.mtu, MTU)
    }

    /// Checks the features that a driver has accepted. If the front-end has [lost](are_lost) them,
    /// assumes features with which every driver of version 1 works: the driver may use any offload
    /// when it sends, and receives plain frames, each in one buffer.
    ///
    /// # Errors
    /// Bits that were not offered, or a bit without the bits that it needs.
    pub fn accept(&self, bits: u64) -> Result<AcceptedFeatures, FeatureError> {
        if are_lost(bits) {
            return Ok(AcceptedFeatures(bits | self.bits() & (VERSION_1 | SENDS)));
        }
        // Bits beyond the device's belong to the transport and its session.
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

/// Bits that only the session uses: VHOST_F_LOG_ALL and VHOST_USER_F_PROTOCOL_FEATURES.
const SESSION: u64 = 1 << 26 | 1 << 30;

/// Returns whether the front-end has lost the features that its driver accepted. A driver of
/// version 1 accepts at least one. QEMU 7.2 loses them if a driver starts while no backend
/// is connected.
pub fn are_lost(bits: u64) -> bool {
    bits & !SESSION == 0
}

/// Bits that a device type may define (virtio 1.2, 2.2).
const DEVICE: u64 = ((1 << 24) - 1) | (!0 << 50);

/// Reason why accepted features are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    /// These bits were not offered.
    #[error("feature bits {0:#x} were not offered")]
    NotOffered(u64),
    /// A feature is accepted without any of the features that it needs.
    #[error("feature bit {feature:#x} needs one of {needs:#x}")]
    Needs {
        /// Bit of the feature.
        feature: u64,
        /// Bits of which the feature needs one.
        needs: u64,
    },
}

/// Features that a driver has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedFeatures(u64);

impl AcceptedFeatures {
    /// Returns whether all of these bits were accepted.
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Returns the offloads that the driver may leave to the receiver of its frames.
    pub fn sends(self) -> Offloads {
        Offloads {
            checksum: self.has(CSUM),
            tcp4: self.has(HOST_TSO4),
            tcp6: self.has(HOST_TSO6),
            ecn: self.has(HOST_ECN),
            // A driver's claim that a checksum is valid is not passed on (virtio 1.2, 5.1.6.2.1).
            vouches: false,
        }
    }

    /// Returns the offloads that may be left to the driver.
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
