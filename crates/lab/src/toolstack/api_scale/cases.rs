//! Cases of `api-scale` and their bars.

use crate::experiment::{Comparison, Figure, Options, Side};

/// Numbers of VMs in the cells, and with `--quick`: some more than run.
const MACHINES: [usize; 2] = [100, 1000];
const QUICK_MACHINES: [usize; 1] = [30];
/// Disks of each VM.
pub(super) const DISKS: u8 = 15;
/// Bar for the server's time of `VM.get_all_records`, in milliseconds: the 99th percentile.
const RECORDS_MS: f64 = 50.0;
/// Bar for the time from a change to the client that waits for it, in milliseconds: the 99th
/// percentile.
const WAKE_MS: f64 = 10.0;
/// Most time to create the last tenth of the VMs, over the time for the first tenth.
const SLOWING: f64 = 3.0;
/// Most time for twenty shutdowns, over the time for one.
const SHUTDOWNS: f64 = 2.0;

/// Measured property of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Records,
    Wake,
    List,
    Shutdown,
}

const ALL: [What; 4] = [What::Records, What::Wake, What::List, What::Shutdown];

impl What {
    pub(super) fn cell(self, machines: usize) -> String {
        let what = match self {
            Self::Records => "records",
            Self::Wake => "wake",
            Self::List => "list",
            Self::Shutdown => "shutdown",
        };
        format!("m{machines}-{what}")
    }

    pub(super) fn title(self, machines: usize) -> String {
        let what = match self {
            Self::Records => "all records of machines, server's time",
            Self::Wake => "from a change to its event at a waiting client",
            Self::List => "xe vm-list, from its start to its end",
            Self::Shutdown => "clean shutdowns of guests that take a second",
        };
        format!("{machines} machines with {DISKS} disks each: {what}")
    }

    pub(super) fn systems(self) -> Vec<String> {
        let all: &[&str] = match self {
            Self::Records => &["JSON", "XML"],
            Self::Wake => &["event.from"],
            Self::List => &["xe vm-list"],
            Self::Shutdown => &["20 at once", "one"],
        };
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Returns the comparisons. Bars apply to a thousand VMs. Fewer VMs are only shown.
    pub(super) fn comparisons(self, machines: usize) -> Vec<Comparison> {
        let bar = |bar| (machines == MACHINES[1]).then_some(bar);
        let of = |ours: &str, metric: &str| Comparison {
            cell: self.cell(machines),
            ours: ours.to_owned(),
            metric: Some(metric.to_owned()),
            // A median of the rounds would hide a slow one.
            figure: Figure::Worst,
            side: Side::AtMost,
            ..Comparison::default()
        };
        match self {
            Self::Records => ["server_p99_ms", "cold_ms", "first_ms"]
                .into_iter()
                .flat_map(|metric| ["JSON", "XML"].map(|ours| of(ours, metric)))
                .map(|of| Comparison { bar: bar(RECORDS_MS), ..of })
                .chain([Comparison { bar: bar(SLOWING), ..of("JSON", "slowing") }])
                .collect(),
            Self::Wake => {
                vec![Comparison { bar: bar(WAKE_MS), ..of("event.from", "wake_p99_ms") }]
            }
            Self::List => Vec::new(),
            Self::Shutdown => vec![Comparison {
                peers: vec!["one".to_owned()],
                figure: Figure::OverBest,
                bar: bar(SHUTDOWNS),
                ..of("20 at once", "stop_ms")
            }],
        }
    }
}

pub(super) fn cells(options: &Options) -> Vec<(usize, What)> {
    let machines: &[usize] = if options.quick { &QUICK_MACHINES } else { &MACHINES };
    let all = machines.iter().flat_map(|machines| ALL.map(|what| (*machines, what)));
    let wanted = |(machines, what): &(usize, What)| options.selects(&what.cell(*machines));
    all.filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_machines_carry_the_bars_and_a_hundred_none() {
        for (machines, what) in cells(&Options::default()) {
            for compared in what.comparisons(machines) {
                assert_eq!(compared.bar.is_some(), machines == 1000, "{compared:?}");
                assert!(what.systems().contains(&compared.ours), "{compared:?}");
                assert!(compared.peers.iter().all(|peer| what.systems().contains(peer)));
            }
        }
        assert_eq!(cells(&Options { quick: true, ..Options::default() }).len(), ALL.len());
    }
}
