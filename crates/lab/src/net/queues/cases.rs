//! Matrix of ends and queue pairs.

use super::path::{OURS, StreamPath};
use crate::experiment::Options;
use crate::net::client::FULL;
use crate::net::systems::System;
use crate::net::tso;

const COUNTS: [u16; 4] = [1, 2, 4, 8];
/// Numbers of a quick run.
pub(super) const ENDS: [u16; 2] = [1, 8];
/// Switches in other processes. The bar on CPU time applies to the first.
pub(super) const PEERS: [System; 3] =
    [System::TestpmdWhole, System::Ovs { sleeps: false }, System::Ovs { sleeps: true }];

/// Ends of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnds {
    /// Two User-Mode Linux guests with a CPU each.
    Guests,
    /// Two User-Mode Linux guests without CPU affinity.
    Free,
    /// A User-Mode Linux guest and the host.
    Host,
    /// Two QEMU guests.
    Emulated,
    /// Two NICs of the lab's raw client, with frames of this size in bytes.
    Nics(usize),
}

/// Ends, and the number of concurrent streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) stream_ends: StreamEnds,
    pub(super) streams: u16,
}

impl Case {
    pub(super) fn all(options: &Options) -> Vec<Self> {
        let streams = if options.quick { &ENDS[..] } else { &COUNTS };
        let of = |stream_ends| {
            streams.iter().map(move |streams| Self { stream_ends, streams: *streams })
        };
        // One stream shows what pairs cost.
        let one = [StreamEnds::Nics(FULL), StreamEnds::Nics(tso::BYTES)];
        let one = one.map(|stream_ends| Self { stream_ends, streams: 1 });
        let ends = |stream_ends| ENDS.map(|streams| Self { stream_ends, streams });
        let wanted = |case: &Self| {
            // No peer replaces our uplink or our queue pairs.
            (case.is_switched() || !options.control) && options.selects(&case.id())
        };
        let all = of(StreamEnds::Guests).chain(ends(StreamEnds::Free)).chain(of(StreamEnds::Host));
        all.chain(ends(StreamEnds::Emulated)).chain(one).filter(wanted).collect()
    }

    pub(super) fn id(self) -> String {
        match self.stream_ends {
            StreamEnds::Guests => format!("vif-s{}", self.streams),
            StreamEnds::Free => format!("vif-free-s{}", self.streams),
            StreamEnds::Host => format!("uplink-s{}", self.streams),
            StreamEnds::Emulated => format!("qemu-s{}", self.streams),
            StreamEnds::Nics(FULL) => format!("nic-1500-s{}", self.streams),
            StreamEnds::Nics(_) => format!("nic-64k-s{}", self.streams),
        }
    }

    /// Returns whether User-Mode Linux guests meet at each of the switches.
    fn is_switched(self) -> bool {
        matches!(self.stream_ends, StreamEnds::Guests | StreamEnds::Free)
    }

    /// Returns whether each guest is pinned to a CPU.
    pub(super) fn has_places(self) -> bool {
        self.stream_ends == StreamEnds::Guests
    }

    /// Returns whether the guests run under QEMU.
    pub(super) fn is_emulated(self) -> bool {
        self.stream_ends == StreamEnds::Emulated
    }

    pub(super) fn title(self) -> String {
        let who = match self.stream_ends {
            StreamEnds::Guests => "two guests with a CPU each, TCP streams".to_owned(),
            StreamEnds::Free => "two guests without CPU affinity, TCP streams".to_owned(),
            StreamEnds::Host => "a guest and the host, TCP streams".to_owned(),
            StreamEnds::Emulated => "two guests of QEMU, TCP streams".to_owned(),
            StreamEnds::Nics(bytes) => format!("two NICs, frames of {bytes} bytes, streams"),
        };
        format!("{who}: {}", self.streams)
    }

    pub(super) fn ways(self, options: &Options) -> Vec<StreamPath> {
        let pairs = if options.quick { &ENDS[..] } else { &COUNTS };
        match self.stream_ends {
            StreamEnds::Guests | StreamEnds::Free => {}
            StreamEnds::Host => {
                let ours =
                    pairs.iter().flat_map(|n| [false, true].map(|back| StreamPath::Host(*n, back)));
                return ours.chain([false, true].map(StreamPath::Tap)).collect();
            }
            StreamEnds::Emulated => {
                return [ENDS.map(StreamPath::Emulated), ENDS.map(StreamPath::EmulatedBridge)]
                    .concat();
            }
            StreamEnds::Nics(bytes) => {
                return ENDS.map(|pairs| StreamPath::Nics(pairs, bytes)).into();
            }
        }
        let ours = pairs.iter().map(|n| StreamPath::Switch(OURS, *n));
        let ours = ours.chain((self.streams == 1).then_some(StreamPath::OneOf(8)));
        let ours =
            ours.chain((self.streams == 1 && self.has_places()).then_some(StreamPath::Turns(8)));
        let peers = PEERS.map(|peer| StreamPath::Switch(peer, 1));
        ours.filter(|_| !options.control).chain([StreamPath::Bridge]).chain(peers).collect()
    }
}
