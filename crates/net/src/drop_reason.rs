//! Reasons for dropped frames, with a counter for each.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Reason for a dropped frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name of the reason for metrics and logs.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }
        }
    };
}

reasons! {
    /// The chain has no room for a virtio-net header.
    ShortHeader = "short-header",
    /// A buffer is in no memory that the front-end shares.
    OutsideMemory = "outside-memory",
    /// The frame has no complete Ethernet header.
    ShortFrame = "short-frame",
    /// The frame is longer than any frame may be.
    LongFrame = "long-frame",
    /// The type of segmentation is unknown.
    UnknownGso = "unknown-gso",
    /// The header requests an offload that was not negotiated.
    NotNegotiated = "not-negotiated",
    /// The header requests segmentation of a frame whose checksum is complete.
    GsoWithoutChecksum = "gso-without-checksum",
    /// The header has the ECN bit but requests no segmentation.
    EcnWithoutGso = "ecn-without-gso",
    /// The size of segments is invalid.
    GsoSize = "gso-size",
    /// The header claims more header bytes than the frame has.
    GsoHeader = "gso-header",
    /// The requested segmentation does not fit the frame's protocol.
    GsoMismatch = "gso-mismatch",
    /// The frame would become too many segments for a receiver without segmentation offload.
    ManySegments = "many-segments",
    /// The checksum field would lie outside of the permitted range.
    ChecksumRange = "checksum-range",
    /// The frame comes from a port that does not exist.
    NoPort = "no-port",
    /// The frame comes from a closed port.
    Closed = "closed",
    /// The source address is a multicast address or zero.
    BadSource = "bad-source",
    /// The destination is reserved for bridges, which do not forward it.
    ReservedDestination = "reserved-destination",
    /// The frame has a VLAN tag that its port may not send.
    WrongVlan = "wrong-vlan",
    /// The frame, or a segment of it, is longer than the network's MTU.
    Oversize = "oversize",
    /// Locked port: the source is not the port's address.
    LockedMac = "locked-mac",
    /// Locked port: the IP source is not allowed.
    LockedAddress = "locked-address",
    /// Locked port: ARP for an address that is not allowed.
    LockedArp = "locked-arp",
    /// Locked port: neighbour discovery for an address that is not allowed, or a message of a
    /// router.
    LockedNeighbour = "locked-neighbour",
    /// Locked port: the protocol cannot be checked.
    LockedProtocol = "locked-protocol",
    /// Locked port: the checksum would overwrite bytes that were checked.
    LockedChecksum = "locked-checksum",
    /// The port has sent more broadcasts, multicasts and unknown destinations than it may.
    FloodLimit = "flood-limit",
    /// The frame would return to the port it came from.
    SamePort = "same-port",
    /// The destination port is closed or not in the frame's VLAN.
    ReceiverClosed = "receiver-closed",
    /// No port receives the frame.
    NoReceiver = "no-receiver",
    /// The receiver has no buffers for the frame.
    NoBuffer = "no-buffer",
    /// The receiver accepts a frame only in one buffer, and that is too small.
    SmallBuffer = "small-buffer",
    /// The link to the receiver's reactor is full.
    ReactorBusy = "reactor-busy",
    /// The host's kernel rejects the frame.
    HostRefused = "host-refused",
    /// The host's kernel accepted the frame and failed to deliver it.
    HostLost = "host-lost",
}

/// Counters by reason: one writer, any number of readers, no read-modify-write.
#[derive(Debug)]
pub struct Drops([AtomicU64; Reason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    /// Counts one dropped frame. Only the owner of the counters may call this.
    pub fn count(&self, reason: Reason) {
        if let Some(counter) = self.0.get(reason as usize) {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Returns the number of frames dropped for `reason`.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0.get(reason as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_reason_has_a_counter_and_a_name_of_its_own() {
        let drops = Drops::default();
        for (times, reason) in Reason::ALL.iter().enumerate() {
            (0..=times).for_each(|_| drops.count(*reason));
        }
        for (times, reason) in (1..).zip(Reason::ALL) {
            assert_eq!(drops.get(*reason), times, "{reason:?}");
        }
        let names: HashSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}
