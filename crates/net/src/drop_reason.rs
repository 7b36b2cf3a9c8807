//! Why frames are dropped, and how often.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Why a frame is dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// One word for metrics and logs.
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
    /// It has no Ethernet header.
    ShortFrame = "short-frame",
    /// It is longer than any frame may be.
    LongFrame = "long-frame",
    /// The type of segmentation is none that is known.
    UnknownGso = "unknown-gso",
    /// It asks for an offload that was not negotiated.
    NotNegotiated = "not-negotiated",
    /// It asks for segmentation and brings a finished checksum.
    GsoWithoutChecksum = "gso-without-checksum",
    /// It tells of ECN and asks for no segmentation.
    EcnWithoutGso = "ecn-without-gso",
    /// The size of segments is impossible.
    GsoSize = "gso-size",
    /// Its headers are said to be longer than the frame.
    GsoHeader = "gso-header",
    /// It is no frame that the asked segmentation is for.
    GsoMismatch = "gso-mismatch",
    /// It would become too many segments for a receiver that does not take it whole.
    ManySegments = "many-segments",
    /// The checksum would be outside of what it may cover.
    ChecksumRange = "checksum-range",
    /// It comes from a port that there is not.
    NoPort = "no-port",
    /// The port it comes from is closed.
    Closed = "closed",
    /// The source is a group, or zero.
    BadSource = "bad-source",
    /// The destination is one that bridges keep to themselves.
    ReservedDestination = "reserved-destination",
    /// It has a tag that its port may not send.
    WrongVlan = "wrong-vlan",
    /// It is, or its segments are, longer than the network's MTU.
    Oversize = "oversize",
    /// Locked port: not the port's source address.
    LockedMac = "locked-mac",
    /// Locked port: an IP source that is not allowed.
    LockedAddress = "locked-address",
    /// Locked port: ARP for an address that is not allowed.
    LockedArp = "locked-arp",
    /// Locked port: neighbour discovery for an address that is not allowed, or a router's part.
    LockedNeighbour = "locked-neighbour",
    /// Locked port: a protocol that cannot be checked.
    LockedProtocol = "locked-protocol",
    /// Locked port: a checksum that would be written over what was checked.
    LockedChecksum = "locked-checksum",
    /// More broadcasts, multicasts and unknown destinations than the port may send.
    FloodLimit = "flood-limit",
    /// It would go back to where it came from.
    SamePort = "same-port",
    /// The port it would go to is closed or not in its VLAN.
    ReceiverClosed = "receiver-closed",
    /// Nobody is there to get it.
    NoReceiver = "no-receiver",
    /// The receiver has no buffers for it.
    NoBuffer = "no-buffer",
    /// The receiver takes a frame in one buffer only, and that is too small.
    SmallBuffer = "small-buffer",
    /// The receiver's reactor has not taken what was sent there before.
    ReactorBusy = "reactor-busy",
    /// The host's kernel takes no such frame.
    HostRefused = "host-refused",
    /// The host's kernel had it and could not hand it over.
    HostLost = "host-lost",
}

/// A counter for each reason: one writer, any readers, no read-modify-write.
#[derive(Debug)]
pub struct Drops([AtomicU64; Reason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    /// Counts one more. Only the owner of the counters may call it.
    pub fn count(&self, reason: Reason) {
        if let Some(counter) = self.0.get(reason as usize) {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// How many there were.
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
