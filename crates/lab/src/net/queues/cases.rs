//! The matrix: who meets over how many pairs, what was promised of that, and how it is drawn.

use crate::blk::systems::Poll;
use crate::experiment::{Comparison, Options, PanelPlan, PlotPlan, PointPlan, SeriesPlan, Side};
use crate::net::systems::System;

const COUNTS: [u16; 4] = [1, 2, 4, 8];
/// In a quick run.
const ENDS: [u16; 2] = [1, 8];
/// One stream: with eight pairs over the same with one.
const ONE_STREAM: f64 = 0.95;
/// CPU time of ours over testpmd's.
const BACKEND: f64 = 0.5;

/// Between whom, by what, over how many pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Two guests at a switch.
    Switch(System, u16),
    /// Two guests at ours, whose NICs have so many pairs and use the first.
    OneOf(u16),
    /// Two guests at a bridge of the kernel.
    Bridge,
    /// A guest and the host at ours; from the host, or to it.
    Host(u16, bool),
    /// A guest at a TAP device of the host's; from the host, or to it.
    Tap(bool),
}

/// What streams: guests, or a guest and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    uplink: bool,
    pub(super) streams: u16,
}

pub(super) const OURS: System = System::Ringway(Poll::Auto);

impl Way {
    pub(super) fn name(self) -> String {
        let pairs = |n: u16| if n == 1 { "1 pair".to_owned() } else { format!("{n} pairs") };
        match self {
            Self::Switch(system, n) if system == OURS => format!("ringway-net, {}", pairs(n)),
            Self::Switch(system, _) => system.name(),
            Self::OneOf(n) => format!("ringway-net, 1 of {}", pairs(n)),
            Self::Bridge => "kernel TAP, bridge, TAP".to_owned(),
            Self::Host(n, false) => format!("guest to host, {}", pairs(n)),
            Self::Host(n, true) => format!("host to guest, {}", pairs(n)),
            Self::Tap(false) => "guest to host, kernel TAP".to_owned(),
            Self::Tap(true) => "host to guest, kernel TAP".to_owned(),
        }
    }
}

impl Case {
    pub(super) fn all(options: &Options) -> Vec<Self> {
        let streams = if options.quick { &ENDS[..] } else { &COUNTS };
        let of = |uplink| streams.iter().map(move |streams| Self { uplink, streams: *streams });
        let wanted = |case: &Self| {
            // Nothing stands in for our uplink.
            !(case.uplink && options.control)
                && options.only.as_ref().is_none_or(|only| case.id().contains(only))
        };
        of(false).chain(of(true)).filter(wanted).collect()
    }

    pub(super) fn id(self) -> String {
        format!("{}-s{}", if self.uplink { "uplink" } else { "vif" }, self.streams)
    }

    pub(super) fn title(self) -> String {
        let who = if self.uplink { "a guest and the host" } else { "two guests" };
        format!("{who}, TCP streams: {}", self.streams)
    }

    pub(super) fn ways(self, options: &Options) -> Vec<Way> {
        if self.uplink {
            let ours = ENDS.iter().flat_map(|n| [false, true].map(|back| Way::Host(*n, back)));
            return ours.chain([false, true].map(Way::Tap)).collect();
        }
        let pairs = if options.quick { &ENDS[..] } else { &COUNTS };
        let ours = pairs.iter().map(|n| Way::Switch(OURS, *n));
        let ours = ours.chain((self.streams == 1).then_some(Way::OneOf(8)));
        let peers = [Way::Bridge, Way::Switch(System::TestpmdWhole, 1)];
        ours.filter(|_| !options.control).chain(peers).collect()
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
        if self.uplink {
            let judged = |back| Comparison {
                spread_excuses: true,
                ..of(Way::Host(1, back), Way::Tap(back), 1.0)
            };
            let turned = |way: fn(bool) -> Way| shown(way(true), way(false));
            let all = [judged(false), judged(true), turned(|back| Way::Host(1, back))];
            return all.into_iter().chain([turned(Way::Tap)]).collect();
        }
        let [one, eight] = [1, 8].map(|pairs| Way::Switch(OURS, pairs));
        let testpmd = Way::Switch(System::TestpmdWhole, 1);
        let switch = Comparison { spread_excuses: true, ..of(one, testpmd, 1.0) };
        let metric = Some("backend_cpus".to_owned());
        let cpu = Comparison { metric, side: Side::AtMost, ..of(one, testpmd, BACKEND) };
        let mut all = vec![switch, cpu, shown(one, Way::Bridge)];
        if self.streams == 1 {
            all.push(of(eight, one, ONE_STREAM));
            // How much of it comes with pairs that are there and not used, at either end.
            all.extend([shown(eight, Way::OneOf(8)), shown(Way::OneOf(8), one)]);
        }
        all
    }
}

/// As in the documents: streams on x, a line for each number of pairs.
pub(super) fn plot(cases: &[Case], options: &Options) -> PlotPlan {
    let panel = |uplink: bool, metric: &str| {
        let here: Vec<Case> = cases.iter().filter(|case| case.uplink == uplink).copied().collect();
        let mut ways = here.first().map(|case| case.ways(options)).unwrap_or_default();
        ways.retain(|way| !matches!(way, Way::OneOf(_)));
        let line = |way: Way| SeriesPlan {
            name: way.name(),
            points: here
                .iter()
                .enumerate()
                .map(|(step, case)| PointPlan { step, cell: case.id(), system: way.name() })
                .collect(),
        };
        PanelPlan {
            title: (if uplink { "guest and host" } else { "guest to guest" }).to_owned(),
            x: "TCP streams".to_owned(),
            steps: here.iter().map(|case| case.streams.to_string()).collect(),
            metric: metric.to_owned(),
            log: false,
            series: ways.into_iter().map(line).collect(),
        }
    };
    let metrics = ["gbit_per_s", "backend_cpus"];
    PlotPlan {
        name: "lines".to_owned(),
        title: "net-queues: TCP streams over pairs of queues".to_owned(),
        columns: metrics.len(),
        panels: [false, true].into_iter().flat_map(|u| metrics.map(|m| panel(u, m))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_of_streams() {
        let cases = Case::all(&Options::default());
        assert_eq!(cases.len(), 8);
        let bars = |id: &str| {
            let case = cases.iter().find(|case| case.id() == id).unwrap();
            let all = case.comparisons(&Options::default());
            all.into_iter().filter_map(|c| c.bar).collect::<Vec<_>>()
        };
        assert_eq!(bars("vif-s1"), [1.0, 0.5, 0.95]);
        assert_eq!((bars("vif-s8"), bars("uplink-s1")), (vec![1.0, 0.5], vec![1.0, 1.0]));
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(Case::all(&quick).len(), 4);
        assert_eq!(plot(&cases, &Options::default()).panels[0].series.len(), 6);
        let control = Options { control: true, ..Options::default() };
        assert!(cases.iter().all(|case| case.comparisons(&control).is_empty()));
    }
}
