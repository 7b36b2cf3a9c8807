//! Bars of the matrix.

use super::cases::{Case, ENDS, PEERS, StreamEnds};
use super::path::{OURS, StreamPath};
use crate::experiment::{Comparison, Figure, Options, Side};
use crate::net::guests::PER_BUSY;
use crate::net::guests::turns::ALL_OVER_ONE;
use crate::net::tso::PER_CPU;

/// Least rate of one stream with eight pairs, over the same with one.
const ONE_STREAM: f64 = 0.95;
/// Most CPU time of ours, over testpmd.
const BACKEND: f64 = 0.5;

impl Case {
    pub(super) fn comparisons(self, options: &Options) -> Vec<Comparison> {
        if options.control {
            return Vec::new();
        }
        let shown = |ours: StreamPath, peer: StreamPath| Comparison {
            cell: self.id(),
            ours: ours.name(),
            peers: vec![peer.name()],
            ..Comparison::default()
        };
        let of = |ours, peer, bar| Comparison { bar: Some(bar), ..shown(ours, peer) };
        let about = |ours, peer, bar| Comparison { spread_excuses: true, ..of(ours, peer, bar) };
        let whole = |ours, peer| about(ours, peer, 1.0);
        match self.stream_ends {
            StreamEnds::Guests | StreamEnds::Free => {}
            StreamEnds::Host => {
                let judged = |back| whole(StreamPath::Host(1, back), StreamPath::Tap(back));
                let turned = |way: fn(bool) -> StreamPath| shown(way(true), way(false));
                let pairs = |back| {
                    let [eight, one] = [8, 1].map(|pairs| StreamPath::Host(pairs, back));
                    if self.streams == 1 {
                        about(eight, one, ONE_STREAM)
                    } else {
                        shown(eight, one)
                    }
                };
                let all = [judged(false), judged(true), turned(|back| StreamPath::Host(1, back))];
                let more = [turned(StreamPath::Tap), pairs(false), pairs(true)];
                return all.into_iter().chain(more).collect();
            }
            StreamEnds::Emulated => {
                let [one, eight] = ENDS.map(StreamPath::Emulated);
                let beside =
                    ENDS.map(|n| shown(StreamPath::Emulated(n), StreamPath::EmulatedBridge(n)));
                let pairs = match self.streams {
                    1 => about(eight, one, ONE_STREAM),
                    _ => shown(eight, one),
                };
                return [pairs].into_iter().chain(beside).collect();
            }
            StreamEnds::Nics(bytes) => {
                return vec![of(
                    StreamPath::Nics(8, bytes),
                    StreamPath::Nics(1, bytes),
                    ONE_STREAM,
                )];
            }
        }
        let [one, eight] = [1, 8].map(|pairs| StreamPath::Switch(OURS, pairs));
        let [testpmd, ..] = PEERS.map(|peer| StreamPath::Switch(peer, 1));
        let each =
            PEERS.map(|peer| StreamPath::Switch(peer, 1)).map(|peer| match self.stream_ends {
                // A spinning switch drives both guests to one CPU, where their wakeups are cheap.
                // That effect comes from the placement, so there is no bar.
                StreamEnds::Free => shown(one, peer),
                _ => whole(one, peer),
            });
        let cpu = match self.stream_ends {
            StreamEnds::Free => Comparison {
                metric: Some("backend_cpus".to_owned()),
                side: Side::AtMost,
                ..of(one, testpmd, BACKEND)
            },
            // A spinning switch gets only the CPU time that the guest on its CPU leaves. So the bar
            // applies to Gb per CPU second.
            _ => Comparison { metric: Some(PER_CPU.to_owned()), ..of(one, testpmd, 1.0 / BACKEND) },
        };
        let mut all = Vec::from(each);
        all.push(cpu);
        all.extend(self.beside_the_kernel(whole(one, StreamPath::Bridge)));
        if self.streams == 1 {
            all.extend(self.pairs(about(eight, one, ONE_STREAM)));
            // Shows which part of the cost comes from unused pairs, at either end.
            all.push(shown(StreamPath::OneOf(8), one));
        }
        all
    }

    /// Returns the bars of pairs that one stream does not need. `boots` compares boots with and
    /// without these pairs.
    fn pairs(self, boots: Comparison) -> Vec<Comparison> {
        if !self.has_places() {
            return vec![boots];
        }
        let turns = Comparison {
            cell: self.id(),
            ours: StreamPath::Turns(8).name(),
            metric: Some(ALL_OVER_ONE.to_owned()),
            figure: Figure::Alone,
            bar: Some(ONE_STREAM),
            ..Comparison::default()
        };
        vec![Comparison { bar: None, ..boots }, turns]
    }

    /// Returns the bars against the kernel's bridge. `gbit` compares Gb/s.
    fn beside_the_kernel(self, gbit: Comparison) -> Vec<Comparison> {
        if !self.has_places() {
            return vec![gbit];
        }
        let for_all = Comparison { metric: Some(PER_BUSY.to_owned()), ..gbit.clone() };
        vec![gbit, for_all]
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
        assert_eq!(bars("vif-s1"), [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 0.95]);
        for id in ["vif-s2", "vif-s4", "vif-s8"] {
            assert_eq!(bars(id), [1.0, 1.0, 1.0, 2.0, 1.0, 1.0]);
        }
        assert_eq!(bars("vif-free-s1"), [0.5, 1.0, 0.95]);
        assert_eq!(bars("vif-free-s8"), [0.5, 1.0]);
        assert_eq!(bars("uplink-s1"), [1.0, 1.0, 0.95, 0.95]);
        assert_eq!(bars("uplink-s8"), [1.0, 1.0]);
        for id in ["qemu-s1", "nic-1500-s1", "nic-64k-s1"] {
            assert_eq!(bars(id), [0.95]);
        }
        // The cost of pairs has a strict bar where only the switch is measured, or within one boot.
        let strict = cases.iter().filter(|case| {
            let all = case.comparisons(&Options::default());
            all.iter().any(|c| c.bar == Some(ONE_STREAM) && !c.spread_excuses)
        });
        let measures_alone = |id: &str| id.starts_with("nic-") || id == "vif-s1";
        let expected = cases.iter().filter(|case| measures_alone(&case.id()));
        assert!(strict.eq(expected));
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(bars("qemu-s8"), [0.0; 0]);
        assert_eq!(Case::all(&quick).len(), 10);
        let control = Options { control: true, ..Options::default() };
        assert!(cases.iter().all(|case| case.comparisons(&control).is_empty()));
    }
}
