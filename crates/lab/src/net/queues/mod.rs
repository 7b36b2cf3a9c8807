//! `net-queues`: TCP streams over queue pairs, between two guests and between a guest and the host.
//!
//! The matrix has 1, 2, 4 and 8 streams over as many pairs. A User-Mode Linux guest has one CPU. So
//! the matrix shows what pairs cost and that streams are distributed, not how they scale. The cost
//! of pairs for one stream is also measured without that guest's part: between NICs of the raw
//! client, and between QEMU guests.

mod bars;
mod cases;
mod notes;
mod path;
mod plot;
mod setup;

use std::time::Duration;

use anyhow::{Context, Result};
use testkit::guest::artifacts;
use testkit::process::find_tool;

use cases::{Case, PEERS};
use notes::{notes, places};
use path::{OURS, StreamPath};
use plot::plot;
use setup::{emulated, host, switch};

use super::client::{self, Lane, Shape, tcp};
use super::guests::{self, End, Streams};
use super::systems::versions;
use super::tap::{Bridge, Device};
use super::tso;
use crate::blk::client::Window;
use crate::cpu::Placement;
use crate::cpu_speed::{CpuPairSpeed, SETTLES};
use crate::experiment::{CellPlan, Experiment, Options, Plan, Prepared, Sample};
use crate::host::versions as tools;
use crate::slices::{Slice, least_disturbed, of_starts};

/// Runs per boot of the guests.
#[derive(Debug, Clone, Copy)]
struct Runs {
    /// Runs of a path with its queue pairs.
    usual: usize,
    /// Runs that alternate between all pairs and one; an even number.
    by_turns: usize,
}

impl Runs {
    fn of(options: &Options) -> Self {
        if options.quick { Self { usual: 2, by_turns: 2 } } else { Self { usual: 4, by_turns: 12 } }
    }
}

/// Length of a slice between NICs, in milliseconds.
const SLICE_MS: u64 = 100;
/// Longest wait of a start between NICs for slices with undisturbed CPUs.
const PATIENCE: Duration = Duration::from_secs(2);

/// The `net-queues` experiment.
#[derive(Debug)]
pub struct NetQueues;

impl Experiment for NetQueues {
    fn name(&self) -> &'static str {
        "net-queues"
    }

    fn summary(&self) -> &'static str {
        "TCP streams x pairs of queues, between two guests, or NICs, and between a guest and the host"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let cases = Case::all(options);
        let cell = |case: &Case| CellPlan {
            id: case.id(),
            title: case.title(),
            systems: case.ways(options).into_iter().map(StreamPath::name).collect(),
        };
        let mut versions = versions(&[&[OURS][..], &PEERS].concat(), options.control)?;
        let used = [("iperf3", "iperf3", "iperf3"), ("guests", "linux.uml", "user-mode-linux")];
        versions.extend(tools(&used, None)?);
        find_tool("ethtool", "ethtool")?;
        if cases.iter().any(|case| case.is_emulated()) {
            let qemu = ("qemu", "qemu-system-x86_64", "qemu-system-x86");
            versions.extend(tools(&[qemu], None)?);
            artifacts()?;
        }
        let plan = Plan {
            cells: cases.iter().map(cell).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 10 }),
            metric: "gbit_per_s".to_owned(),
            comparisons: cases.iter().flat_map(|case| case.comparisons(options)).collect(),
            versions,
            notes: notes(placement, Runs::of(options))?,
            plots: vec![plot(&cases, options)],
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment {
            plan,
            cases,
            placement,
            cpu_pair_speed: None,
            options: options.clone(),
        }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<Case>,
    placement: Placement,
    /// Speed of the two CPUs, for NICs without guests: only those use exactly two. Its search takes
    /// seconds, so the first use begins it.
    cpu_pair_speed: Option<CpuPairSpeed>,
    options: Options,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        let ways = case.ways(&self.options);
        let stream_path = *ways.get(system).context("there is no such system")?;
        let window = Duration::from_millis(self.options.window_ms.unwrap_or(1000));
        let runs = Runs::of(&self.options);
        let (count, repeats) = (case.streams, runs.usual);
        let streams = Streams { count, back: false, repeats, window, turns: None };
        let places = case.has_places().then(places).transpose()?;
        let put = |ends: [End; 2]| match places {
            Some([first, second]) => {
                let [server, client] = ends;
                [server.on(first), client.on(second)]
            }
            None => ends,
        };
        match stream_path {
            StreamPath::Switch(system, pairs) => {
                switch(system, [pairs; 2], put, streams, self.placement)
            }
            StreamPath::OneOf(pairs) => switch(OURS, [pairs, 1], put, streams, self.placement),
            StreamPath::Turns(pairs) => {
                let streams = streams.by_turns(pairs, runs.by_turns);
                switch(OURS, [pairs; 2], put, streams, self.placement)
            }
            StreamPath::Nics(pairs, bytes) => {
                let quick = self.options.quick;
                of_starts(quick, PATIENCE, |patience| self.nics(pairs, bytes, patience))
            }
            StreamPath::Emulated(pairs) => emulated(pairs, streams, self.placement),
            StreamPath::Bridge => {
                let bridge = Bridge::with_devices(1)?;
                let [server, client] = put([0, 1].map(|n| End::tap(&bridge.taps[n])));
                let _server = server.listen(streams)?;
                streams.measure(&client, None)
            }
            StreamPath::EmulatedBridge(pairs) => {
                let bridge = Bridge::with_devices(pairs)?;
                let [server, client] = [0, 1].map(|n| End::emulated_tap(&bridge.taps[n], n, pairs));
                let _server = server.listen(streams)?;
                streams.measure(&client, None)
            }
            StreamPath::Host(pairs, back) => host(pairs, Streams { back, ..streams }),
            StreamPath::Tap(back) => {
                let device = Device::with_address(guests::ADDRESSES[0])?;
                let _servers = guests::host_listens(streams.repeats)?;
                Streams { back, ..streams }.measure(&End::tap(&device.0), None)
            }
        }
    }
}

impl PreparedExperiment {
    /// Measures one flow between NICs of the raw client. Client and switch have a CPU each.
    fn nics(&mut self, pairs: u16, bytes: usize, patience: Duration) -> Result<Sample> {
        let cpus = [self.placement.backend, self.placement.client];
        let cpu_pair_speed = CpuPairSpeed::found_or_of(&mut self.cpu_pair_speed, cpus)?;
        let running = OURS.start(2, pairs, self.placement)?;
        let sockets = [running.socket(0), running.socket(1)];
        let (frames, depth) = (vec![tcp(1, 2, 40_000, bytes)], tso::DEPTHS[1]);
        let lane = Lane::connect(
            [&sockets[0], &sockets[1]],
            [1, 2],
            frames,
            Shape::new(depth, [pairs; 2]),
        )?;
        let mut lane = [lane];
        let window = Window::of(Duration::from_millis(self.options.window_ms.unwrap_or(SLICE_MS)));
        let time = || running.time_s();
        least_disturbed(patience, |until| {
            let before = cpu_pair_speed.undisturbed(until, || {
                let window = Window { warm: Duration::ZERO, measure: SETTLES };
                client::run(&mut lane, self.placement.client, window, &time).map(drop)
            })?;
            let ran = client::run(&mut lane, self.placement.client, window, &time)?;
            let sample = tso::sample_of(&ran, bytes);
            Ok(Slice { pace: before.min(cpu_pair_speed.now()?), sample })
        })
    }
}
