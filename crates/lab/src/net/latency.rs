//! `net-latency`: one request and its reply at a time, for each polling mode of the switch.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::client::{FULL, PingPair, Waits};
use super::systems::{System, versions};
use crate::blk::systems::Poll;
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample};
use crate::host::HostTime;

const SYSTEMS: [System; 6] = [
    System::Ringway(Poll::Off),
    System::Ringway(Poll::Auto),
    System::Ringway(Poll::Always),
    System::Testpmd,
    System::Ovs { sleeps: false },
    System::Ovs { sleeps: true },
];
/// Index of our default mode.
const AUTO: usize = 1;
/// Id of a cell, the wait mode of its ends, and the size of its frames in bytes.
const CASES: [(&str, Waits, usize); 3] = [
    ("asleep-64", Waits::Asleep, 64),
    ("polling-64", Waits::Polling, 64),
    ("polling-1500", Waits::Polling, FULL),
];

/// The `net-latency` experiment.
#[derive(Debug)]
pub struct NetLatency;

fn title(waits: Waits, bytes: usize) -> String {
    let waits = match waits {
        Waits::Asleep => "ends that sleep until notified",
        Waits::Polling => "ends that poll",
    };
    format!("round trip of a frame of {bytes} bytes, {waits}")
}

/// Compares our default with every other mode. Below 1, the default is faster.
fn comparisons(cell: &str, control: bool) -> Vec<Comparison> {
    let names: Vec<_> =
        System::named(&SYSTEMS, control).into_iter().map(|(name, _)| name).collect();
    let others = names.iter().enumerate().filter(|(place, _)| *place != AUTO);
    let of = |(_, peer): (usize, &String)| Comparison {
        cell: cell.to_owned(),
        ours: names[AUTO].clone(),
        peers: vec![peer.clone()],
        ..Comparison::default()
    };
    others.map(of).collect()
}

impl Experiment for NetLatency {
    fn name(&self) -> &'static str {
        "net-latency"
    }

    fn summary(&self) -> &'static str {
        "round trip of one frame: --poll off, auto and always beside testpmd and Open vSwitch"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &(&str, Waits, usize)| options.selects(case.0);
        let cases: Vec<_> = CASES.into_iter().filter(wanted).collect();
        let systems = System::named(&SYSTEMS, options.control);
        let cell = |(id, waits, bytes): &(&str, Waits, usize)| CellPlan {
            id: (*id).to_owned(),
            title: title(*waits, *bytes),
            systems: systems.iter().map(|(name, _)| name.clone()).collect(),
        };
        let plan = Plan {
            cells: cases.iter().map(cell).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 10 }),
            metric: "p50_us".to_owned(),
            comparisons: cases.iter().flat_map(|c| comparisons(c.0, options.control)).collect(),
            versions: versions(&SYSTEMS, options.control)?,
            notes: vec![format!(
                "Switch on CPU {}; one thread on CPU {} drives both NICs: it sends a frame, \
                 receives it, answers and receives the answer. The time is that of both passes \
                 through the switch and nothing else. Lower is better: below 1, Ringway took less \
                 time.",
                placement.backend, placement.client
            )],
            ..Plan::default()
        };
        let window = Duration::from_millis(options.window_ms.unwrap_or(500));
        Ok(Box::new(PreparedExperiment { plan, cases, systems, placement, window }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<(&'static str, Waits, usize)>,
    systems: Vec<(String, System)>,
    placement: Placement,
    window: Duration,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (_, waits, bytes) = self.cases[cell];
        let running = self.systems[system].1.start(2, 1, self.placement)?;
        let mut pair = PingPair::connect([&running.socket(0), &running.socket(1)], bytes)?;
        let mut go = |how_long| pair.ping(waits, how_long);
        cpu::started_on(self.placement.client, || {
            go(self.window / 4)?;
            let (cpu, mine) = (running.time_s()?, cpu::thread_time_s());
            let (host, start) = (HostTime::now()?, Instant::now());
            let latency_ns = go(self.window)?;
            let (cpu, seconds) = (running.time_s()? - cpu, start.elapsed().as_secs_f64());
            let mine = cpu::thread_time_s() - mine;
            let busy = HostTime::now()?.busy_s - host.busy_s;
            ensure!(!latency_ns.is_empty(), "no answer came in time");
            let micros = |q: f64| latency_ns.value_at_quantile(q) as f64 / 1e3;
            let metrics = [
                ("requests", latency_ns.len() as f64),
                ("p50_us", micros(0.5)),
                ("p99_us", micros(0.99)),
                ("backend_cpus", cpu / seconds),
                ("client_cpus", mine / seconds),
                ("other_cpus", (busy - cpu - mine).max(0.0) / seconds),
            ];
            Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_meets_all_others() {
        let all = comparisons("c", false);
        assert_eq!(all.len(), SYSTEMS.len() - 1);
        assert!(all.iter().all(|c| c.ours == "ringway-net --poll auto" && c.bar.is_none()));
    }
}
