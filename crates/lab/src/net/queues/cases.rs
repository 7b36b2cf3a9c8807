//! The matrix: who meets over how many pairs, and what was promised of that.

use super::way::{OURS, Way};
use crate::experiment::{Comparison, Options, Side};
use crate::net::client::FULL;
use crate::net::systems::System;
use crate::net::tso;

const COUNTS: [u16; 4] = [1, 2, 4, 8];
/// In a quick run.
const ENDS: [u16; 2] = [1, 8];
/// Switches in processes of their own; the CPU time of the first is a bar.
pub(super) const PEERS: [System; 3] =
    [System::TestpmdWhole, System::Ovs { sleeps: false }, System::Ovs { sleeps: true }];
/// One stream: with eight pairs over the same with one.
const ONE_STREAM: f64 = 0.95;
/// CPU time of ours over testpmd's.
const BACKEND: f64 = 0.5;

/// Who meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Between {
    /// Two guests of User-Mode Linux, with a CPU each.
    Guests,
    /// Two of them on whatever CPU the host puts them.
    Free,
    /// One of them and the host.
    Host,
    /// Two guests of QEMU.
    Emulated,
    /// Two NICs of the lab's own client, with frames of so many bytes.
    Nics(usize),
}

/// What streams: so many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) between: Between,
    pub(super) streams: u16,
}

impl Case {
    pub(super) fn all(options: &Options) -> Vec<Self> {
        let streams = if options.quick { &ENDS[..] } else { &COUNTS };
        let of = |between| streams.iter().map(move |streams| Self { between, streams: *streams });
        // What pairs cost a stream is seen with one.
        let one = [Between::Nics(FULL), Between::Nics(tso::BYTES)];
        let one = one.map(|between| Self { between, streams: 1 });
        let ends = |between| ENDS.map(|streams| Self { between, streams });
        let wanted = |case: &Self| {
            // Nothing stands in for our uplink, or for pairs.
            (case.is_switched() || !options.control)
                && options.only.as_ref().is_none_or(|only| case.id().contains(only))
        };
        let all = of(Between::Guests).chain(ends(Between::Free)).chain(of(Between::Host));
        all.chain(ends(Between::Emulated)).chain(one).filter(wanted).collect()
    }

    pub(super) fn id(self) -> String {
        match self.between {
            Between::Guests => format!("vif-s{}", self.streams),
            Between::Free => format!("vif-free-s{}", self.streams),
            Between::Host => format!("uplink-s{}", self.streams),
            Between::Emulated => format!("qemu-s{}", self.streams),
            Between::Nics(FULL) => format!("nic-1500-s{}", self.streams),
            Between::Nics(_) => format!("nic-64k-s{}", self.streams),
        }
    }

    /// Guests of User-Mode Linux meet at each of the switches.
    fn is_switched(self) -> bool {
        matches!(self.between, Between::Guests | Between::Free)
    }

    /// Each guest has a CPU that it keeps.
    pub(super) fn has_places(self) -> bool {
        self.between == Between::Guests
    }

    /// There are no guests.
    pub(super) fn is_bare(self) -> bool {
        matches!(self.between, Between::Nics(_))
    }

    /// Its guests are those of QEMU.
    pub(super) fn is_emulated(self) -> bool {
        self.between == Between::Emulated
    }

    pub(super) fn title(self) -> String {
        let who = match self.between {
            Between::Guests => "two guests with a CPU each, TCP streams".to_owned(),
            Between::Free => "two guests wherever the host puts them, TCP streams".to_owned(),
            Between::Host => "a guest and the host, TCP streams".to_owned(),
            Between::Emulated => "two guests of QEMU, TCP streams".to_owned(),
            Between::Nics(bytes) => format!("two NICs, frames of {bytes} bytes, streams"),
        };
        format!("{who}: {}", self.streams)
    }

    pub(super) fn ways(self, options: &Options) -> Vec<Way> {
        let pairs = if options.quick { &ENDS[..] } else { &COUNTS };
        match self.between {
            Between::Guests | Between::Free => {}
            Between::Host => {
                let ours = pairs.iter().flat_map(|n| [false, true].map(|back| Way::Host(*n, back)));
                return ours.chain([false, true].map(Way::Tap)).collect();
            }
            Between::Emulated => {
                return [ENDS.map(Way::Emulated), ENDS.map(Way::EmulatedBridge)].concat();
            }
            Between::Nics(bytes) => return ENDS.map(|pairs| Way::Nics(pairs, bytes)).into(),
        }
        let ours = pairs.iter().map(|n| Way::Switch(OURS, *n));
        let ours = ours.chain((self.streams == 1).then_some(Way::OneOf(8)));
        let peers = PEERS.map(|peer| Way::Switch(peer, 1));
        ours.filter(|_| !options.control).chain([Way::Bridge]).chain(peers).collect()
    }

    pub(super) fn comparisons(self, options: &Options) -> Vec<Comparison> {
        if options.control {
            return Vec::new();
        }
        let shown = |ours: Way, peer: Way| Comparison {
            cell: self.id(),
            ours: ours.name(),
            peers: vec![peer.name()],
            ..Comparison::default()
        };
        let of = |ours, peer, bar| Comparison { bar: Some(bar), ..shown(ours, peer) };
        let about = |ours, peer, bar| Comparison { spread_excuses: true, ..of(ours, peer, bar) };
        let whole = |ours, peer| about(ours, peer, 1.0);
        match self.between {
            Between::Guests | Between::Free => {}
            Between::Host => {
                let judged = |back| whole(Way::Host(1, back), Way::Tap(back));
                let turned = |way: fn(bool) -> Way| shown(way(true), way(false));
                let pairs = |back| {
                    let [eight, one] = [8, 1].map(|pairs| Way::Host(pairs, back));
                    if self.streams == 1 {
                        about(eight, one, ONE_STREAM)
                    } else {
                        shown(eight, one)
                    }
                };
                let all = [judged(false), judged(true), turned(|back| Way::Host(1, back))];
                let more = [turned(Way::Tap), pairs(false), pairs(true)];
                return all.into_iter().chain(more).collect();
            }
            Between::Emulated => {
                let [one, eight] = ENDS.map(Way::Emulated);
                let beside = ENDS.map(|n| shown(Way::Emulated(n), Way::EmulatedBridge(n)));
                let pairs = match self.streams {
                    1 => about(eight, one, ONE_STREAM),
                    _ => shown(eight, one),
                };
                return [pairs].into_iter().chain(beside).collect();
            }
            Between::Nics(bytes) => {
                return vec![of(Way::Nics(8, bytes), Way::Nics(1, bytes), ONE_STREAM)];
            }
        }
        let [one, eight] = [1, 8].map(|pairs| Way::Switch(OURS, pairs));
        let [testpmd, ..] = PEERS.map(|peer| Way::Switch(peer, 1));
        let each = PEERS.map(|peer| Way::Switch(peer, 1)).map(|peer| match self.between {
            // A switch that spins drives guests to one CPU, where they wake each other at once: what
            // that brings is their place's doing.
            Between::Free => shown(one, peer),
            _ => whole(one, peer),
        });
        let cpu = match self.between {
            Between::Free => Comparison {
                metric: Some("backend_cpus".to_owned()),
                side: Side::AtMost,
                ..of(one, testpmd, BACKEND)
            },
            // One that spins has no more of its CPU there than the guest on it leaves: what counts is what
            // it does with that.
            _ => Comparison {
                metric: Some("gbit_per_cpu_s".to_owned()),
                ..of(one, testpmd, 1.0 / BACKEND)
            },
        };
        let mut all = Vec::from(each);
        all.extend([cpu, whole(one, Way::Bridge)]);
        if self.streams == 1 {
            all.push(about(eight, one, ONE_STREAM));
            // How much of it comes with pairs that are there and not used, at either end.
            all.extend([shown(eight, Way::OneOf(8)), shown(Way::OneOf(8), one)]);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_of_streams() {
        let cases = Case::all(&Options::default());
        assert_eq!(cases.len(), 14);
        let bars = |id: &str| {
            let case = cases.iter().find(|case| case.id() == id).unwrap();
            let all = case.comparisons(&Options::default());
            all.into_iter().filter_map(|c| c.bar).collect::<Vec<_>>()
        };
        assert_eq!(bars("vif-s1"), [1.0, 1.0, 1.0, 2.0, 1.0, 0.95]);
        assert_eq!(bars("vif-s8"), [1.0, 1.0, 1.0, 2.0, 1.0]);
        assert_eq!(bars("vif-free-s1"), [0.5, 1.0, 0.95]);
        assert_eq!(bars("vif-free-s8"), [0.5, 1.0]);
        assert_eq!(bars("uplink-s1"), [1.0, 1.0, 0.95, 0.95]);
        assert_eq!(bars("uplink-s8"), [1.0, 1.0]);
        for id in ["qemu-s1", "nic-1500-s1", "nic-64k-s1"] {
            assert_eq!(bars(id), [0.95]);
        }
        // What pairs cost has no excuse where the switch is all that is measured.
        let strict = cases.iter().filter(|case| {
            let all = case.comparisons(&Options::default());
            all.iter().any(|c| c.bar == Some(ONE_STREAM) && !c.spread_excuses)
        });
        assert!(strict.eq(cases.iter().filter(|case| case.is_bare())));
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(bars("qemu-s8"), [0.0; 0]);
        assert_eq!(Case::all(&quick).len(), 10);
        let control = Options { control: true, ..Options::default() };
        assert!(cases.iter().all(|case| case.comparisons(&control).is_empty()));
    }
}
