//! `responsive`: duration of `xe vm-list` while guests demand all CPUs, with and without the
//! slices.
//!
//! Real guests compute on more CPUs than the host has. The calls come from two shells. One is in
//! the control slice, like a login through sshd. The other is outside all slices, where `xe` moves
//! itself to the control slice when it starts.

mod ends;
mod host;

use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::Result;
use tempfile::NamedTempFile;
use testkit::guest::boot_config;

use ends::{ENDS, NotifyLatency, ends};
use host::Host;

use super::caller::{self, Caller};
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;
use crate::stats::percentile;

/// Calls per sample, and with `--quick`.
const CALLS: usize = 500;
const CALLS_QUICK: usize = 60;
/// Guests that end in a sample while the others stay busy: two for each way to end.
const ENDED: usize = 2 * ENDS.len();
/// Most guests. On a host with many CPUs, each guest has several.
const GUESTS_MOST: usize = 16;
/// Guest CPUs per host CPU, and with `--quick`.
const TIMES: usize = 8;
const TIMES_QUICK: usize = 1;

/// Bar for p99 of `xe vm-list` beside busy guests, in milliseconds.
const P99_MS: f64 = 50.0;
/// Bar for the slowest call, in milliseconds.
const MAX_MS: f64 = 250.0;
/// Bar for the time from the end of a guest to the record and the message that report it, in
/// milliseconds.
const END_MS: f64 = 1000.0;
/// Least ratio of the time without the slices over the time with them.
const TIMES_SLOWER: f64 = 5.0;
/// Bar on an otherwise idle host, in milliseconds.
const IDLE_MS: f64 = 15.0;

/// Names of the systems, in the order of each cell.
const SYSTEMS: [&str; 2] = ["with the slices", "without"];

/// The `responsive` experiment.
#[derive(Debug)]
pub struct Responsive;

/// Activity of the guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guests {
    Busy,
    Halted,
}

impl Guests {
    fn cell(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Halted => "idle",
        }
    }

    fn comparisons(self) -> Vec<Comparison> {
        let at_most = |metric: &str, bar| Comparison {
            cell: self.cell().to_owned(),
            ours: SYSTEMS[0].to_owned(),
            metric: Some(metric.to_owned()),
            figure: Figure::Alone,
            side: Side::AtMost,
            bar: Some(bar),
            ..Comparison::default()
        };
        // The maximum of all rounds counts, because a median would hide the slow rounds.
        let never_over =
            |metric: &str, bar| Comparison { figure: Figure::Worst, ..at_most(metric, bar) };
        let slower = |metric: &str, bar| Comparison {
            ours: SYSTEMS[1].to_owned(),
            peers: vec![SYSTEMS[0].to_owned()],
            figure: Figure::OverBest,
            side: Side::AtLeast,
            bar,
            ..at_most(metric, 0.0)
        };
        match self {
            Self::Busy => vec![
                never_over("p99_ms", P99_MS),
                never_over("max_ms", MAX_MS),
                never_over("outside_p99_ms", P99_MS),
                never_over("outside_max_ms", MAX_MS),
                never_over("end_max_ms", END_MS),
                never_over("end_message_max_ms", END_MS),
                slower("p99_ms", Some(TIMES_SLOWER)),
                slower("outside_p99_ms", Some(TIMES_SLOWER)),
                slower("p50_ms", None),
                slower("max_ms", None),
            ],
            Self::Halted => vec![at_most("p50_ms", IDLE_MS), slower("p50_ms", None)],
        }
    }
}

fn cells(options: &Options) -> Vec<Guests> {
    let wanted = |one: &Guests| options.selects(one.cell());
    [Guests::Busy, Guests::Halted].into_iter().filter(wanted).collect()
}

/// Returns the number of guests and the CPUs of each. There are at least two guests, so that one can
/// end beside another.
fn guests(cpus: usize, times: usize) -> (usize, usize) {
    let wanted = (cpus * times).max(2);
    let guests = wanted.min(GUESTS_MOST);
    (guests, wanted.div_ceil(guests))
}

fn cpus() -> usize {
    available_parallelism().map_or(1, |cpus| cpus.get())
}

impl Experiment for Responsive {
    fn name(&self) -> &'static str {
        "responsive"
    }

    fn summary(&self) -> &'static str {
        "xe vm-list while guests want all CPUs, with the control slice and without it"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let quick = |quick, full| if options.quick { quick } else { full };
        let (cells, calls) = (cells(options), quick(CALLS_QUICK, CALLS));
        let (count, each) = guests(cpus(), quick(TIMES_QUICK, TIMES));
        let config = boot_config()?;
        let plan = Plan {
            cells: cells
                .iter()
                .map(|guests| CellPlan {
                    id: guests.cell().to_owned(),
                    title: match guests {
                        Guests::Busy => {
                            format!("xe vm-list, {count} guests compute on {each} CPU(s) each")
                        }
                        Guests::Halted => "xe vm-list, no guest runs".to_owned(),
                    },
                    systems: SYSTEMS.map(str::to_owned).into(),
                })
                .collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "p99_ms".into(),
            comparisons: cells.iter().flat_map(|guests| guests.comparisons()).collect(),
            versions: versions(&[], Some("ringwayd"))?,
            notes: vec![format!(
                "{calls} calls a turn, {} ms between two, each from a shell's start of `xe` to its \
                 end. Every turn has its own daemon and guests. With the slices, the shell is in \
                 the control slice, as a login by sshd is; `outside_` is for as many calls from a \
                 shell in no slice. `guests_cpus` is the guests' share of this host's {} CPUs \
                 meanwhile; without KVM, and with QEMU before 8.1, all CPUs of a guest have one \
                 thread. Then up to {ENDED} machines end, one after the other: the emulator is \
                 killed, the guest panics, powers off, reboots, and so on; each stays halted \
                 afterwards. `end_max_ms`: the longest time from the kill or the last output of \
                 the guest's kernel until `event.from` reports to a client outside of the slices \
                 that the machine is halted; `end_message_max_ms`: until it reports the message \
                 with the reason.",
                caller::GAP.as_millis(),
                cpus()
            )],
            ..Plan::default()
        };
        let window = options.window_ms.map(Duration::from_millis);
        Ok(Box::new(PreparedExperiment {
            plan,
            cells,
            calls,
            guests: (count, each),
            window,
            config,
        }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cells: Vec<Guests>,
    calls: usize,
    /// Number of guests, and CPUs of each.
    guests: (usize, usize),
    window: Option<Duration>,
    config: NamedTempFile,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let host = Host::start(&self.config, self.guests, system == 0)?;
        let shells = match self.cells[cell] {
            Guests::Busy => host.make_busy()?,
            Guests::Halted => Vec::new(),
        };
        let (before, from) = (host.guests_s(), Instant::now());
        let slices = host.daemon.slices();
        let calls = |slices| Caller::start(&host.daemon, slices)?.calls(self.calls, self.window);
        let mut outside = calls(None)?;
        let inside = slices.as_ref().map(|slices| calls(Some(slices))).transpose()?;
        let mut took = inside.unwrap_or_else(|| outside.clone());
        let used = (host.guests_s() - before) / from.elapsed().as_secs_f64();
        let ends = ends(&host, shells, ENDED)?;
        let max = |took: &[f64]| took.iter().copied().fold(0.0, f64::max);
        let mut sample: Sample = [
            ("max_ms", max(&took)),
            ("outside_max_ms", max(&outside)),
            ("p50_ms", percentile(&mut took, 50)),
            ("p99_ms", percentile(&mut took, 99)),
            ("outside_p99_ms", percentile(&mut outside, 99)),
            ("calls", took.len() as f64),
            ("guests_cpus", used),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        sample.extend(longest_latencies(&ends));
        Ok(sample)
    }
}

/// Returns the longest notification latency of all ends, and of each kind of end.
fn longest_latencies(ends: &[NotifyLatency]) -> Sample {
    let mut longest = Sample::new();
    let mut note = |name: String, ms: f64| {
        let most = longest.entry(name).or_insert(ms);
        *most = most.max(ms);
    };
    for one in ends {
        note("end_max_ms".to_owned(), one.halted_ms);
        note("end_message_max_ms".to_owned(), one.message_ms);
        note(format!("end_{}_ms", one.end.name()), one.halted_ms);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_have_more_cpus_than_the_host() {
        for cpus in [1, 2, 3, 4, 5, 64, 200] {
            let (count, each) = guests(cpus, TIMES);
            assert!(count <= GUESTS_MOST && count * each >= TIMES * cpus, "{cpus}");
            assert!(count * each < TIMES * cpus + count, "{cpus}: no more than are needed");
        }
    }

    #[test]
    fn every_comparison_is_of_systems_that_are_there() {
        let all = cells(&Options::default());
        assert_eq!(all.len(), 2);
        for compared in all.into_iter().flat_map(Guests::comparisons) {
            assert!(SYSTEMS.contains(&&*compared.ours), "{compared:?}");
            assert!(compared.peers.iter().all(|peer| SYSTEMS.contains(&&**peer)), "{compared:?}");
        }
    }
}
