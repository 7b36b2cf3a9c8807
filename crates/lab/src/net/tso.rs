//! `net-tso`: 64 KiB frames from NIC to NIC, to the host and from the host.
//!
//! The client is the lab's raw client, because testpmd sends no frames that need segmentation. Each
//! side has the same number of frames in flight, from buffers of the same size. A few fit in a
//! CPU's own cache, and many do not.

use std::time::Duration;

use ::tap::{Tap, TapOrigin};
use anyhow::{Context, Result};

use super::client::{self, FramePath, HostLane, LARGEST, Lane, Ran, Shape, tcp};
use super::systems::{Running, System, versions};
use super::tap::{self, Bridge};
use crate::blk::client::Window;
use crate::blk::systems::Poll;
use crate::cpu::Placement;
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample};

/// Frames in flight: with all buffers within 2 MiB on either side of the switch, and beyond.
pub(super) const DEPTHS: [u16; 2] = [4, 32];
/// Size of a large frame in bytes: the data of 44 segments and the headers, just below 64 KiB.
pub(super) const BYTES: usize = 54 + 44 * 1448;
/// Least ratio of ours over the kernel, by CPU time.
const BAR: f64 = 1.5;
/// Metric: Gb per CPU second of the switch.
pub(super) const PER_CPU: &str = "gbit_per_cpu_s";
/// Least rate from the host over the rate to the host.
const BACK: f64 = 0.6;
const RATE: &str = "gbit_per_s";

/// The `net-tso` experiment.
#[derive(Debug)]
pub struct NetTso;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// From NIC to NIC through a switch, with this number of frames in flight.
    Switch(System, u16),
    /// Through the kernel, with this number of frames at once.
    Kernel(u16),
    /// From a NIC to the host through ours, or back.
    Host(Poll, bool),
}

/// Cells: NIC to NIC with few and many frames in flight, and between a NIC and the host.
const CELLS: [&str; 3] = ["vif-64k-4", "vif-64k-32", "uplink-64k"];

/// Returns the frames in flight. The host's end has no limit, because the kernel queues for it.
fn depth(cell: &str) -> u16 {
    if cell == CELLS[0] { DEPTHS[0] } else { DEPTHS[1] }
}

fn title(cell: &str) -> String {
    let who = if cell == CELLS[2] { "between a NIC and the host" } else { "from NIC to NIC" };
    format!("frames of {BYTES} bytes {who}, {} in flight", depth(cell))
}

/// Returns the kernel systems with as many frames at once as the others. If these are few, also
/// with one frame at a time.
fn kernel(depth: u16) -> Vec<(String, Path)> {
    let of =
        |at_once| (format!("kernel TAP, bridge, TAP, {at_once} at once"), Path::Kernel(at_once));
    if depth == DEPTHS[0] { vec![of(1), of(depth)] } else { vec![of(depth)] }
}

fn systems(cell: &str, control: bool) -> Vec<(String, Path)> {
    let (polls, depth) = ([Poll::Auto, Poll::Always], depth(cell));
    if cell == CELLS[2] {
        let of = |poll: Poll, back: bool| {
            let way = if back { "host to NIC" } else { "NIC to host" };
            (format!("{way}, {}", System::Ringway(poll).name()), Path::Host(poll, back))
        };
        return polls.iter().flat_map(|poll| [of(*poll, false), of(*poll, true)]).collect();
    }
    let ours = polls.map(System::Ringway).map(|system| match control {
        true => (format!("kernel in the place of {}", system.name()), Path::Kernel(depth)),
        false => (system.name(), Path::Switch(system, depth)),
    });
    let testpmd = System::TestpmdWhole;
    let others = [(testpmd.name(), Path::Switch(testpmd, depth))];
    ours.into_iter().chain(others).chain(kernel(depth)).collect()
}

fn comparisons(cell: &str, control: bool) -> Vec<Comparison> {
    let systems = systems(cell, control);
    let of = |ours: &(String, Path), peers: &[(String, Path)], bar: Option<f64>| Comparison {
        cell: cell.to_owned(),
        ours: ours.0.clone(),
        peers: peers.iter().map(|(name, _)| name.clone()).collect(),
        metric: Some(PER_CPU.to_owned()),
        bar: bar.filter(|_| !control),
        ..Comparison::default()
    };
    match &systems[..] {
        [there, back, ..] if cell == CELLS[2] => {
            let by_cpu = of(back, std::slice::from_ref(there), None);
            let bar = (!control).then_some(BACK);
            vec![Comparison { metric: Some(RATE.to_owned()), bar, ..by_cpu.clone() }, by_cpu]
        }
        [ours, _, testpmd, kernel @ ..] => {
            vec![of(ours, kernel, Some(BAR)), of(ours, std::slice::from_ref(testpmd), None)]
        }
        _ => Vec::new(),
    }
}

impl Experiment for NetTso {
    fn name(&self) -> &'static str {
        "net-tso"
    }

    fn summary(&self) -> &'static str {
        "64 KiB segments from NIC to NIC, per CPU second, beside the kernel's TAP, bridge, TAP"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let (placement, control) = (Placement::choose()?, options.control);
        // No peer replaces our uplink.
        let cells = CELLS.into_iter().filter(|cell| !(control && *cell == CELLS[2]));
        let chosen = |cell: &&str| options.selects(cell);
        let cells: Vec<_> = cells.filter(chosen).collect();
        let systems: Vec<_> = cells.iter().map(|cell| systems(cell, control)).collect();
        let plan = |(cell, systems): (&&str, &Vec<(String, Path)>)| CellPlan {
            id: (*cell).to_owned(),
            title: title(cell),
            systems: systems.iter().map(|(name, _)| name.clone()).collect(),
        };
        let ours = System::Ringway(Poll::Auto);
        let used = if control { vec![] } else { vec![ours] };
        let plan = Plan {
            cells: cells.iter().zip(&systems).map(plan).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 10 }),
            metric: PER_CPU.to_owned(),
            comparisons: cells.iter().flat_map(|cell| comparisons(cell, control)).collect(),
            versions: versions(&[&used[..], &[System::TestpmdWhole]].concat(), false)?,
            notes: notes(placement),
            ..Plan::default()
        };
        let window = Window::of(Duration::from_millis(options.window_ms.unwrap_or(500)));
        Ok(Box::new(PreparedExperiment { plan, systems, placement, window }))
    }
}

fn notes(placement: Placement) -> Vec<String> {
    vec![
        format!(
            "Switch on CPU {}, the client on CPU {}: one thread that drives both NICs, polls their \
             rings and touches no data. Each side has as many buffers of {BYTES} bytes as frames \
             are in flight, one descriptor each.",
            placement.backend, placement.client
        ),
        "One thread on the switch's CPU writes to and reads from the kernel's path, with two \
         system calls for each frame and as many frames at once as the others have in flight. If \
         those are few, it also runs with one at a time, and the better one of each round counts. \
         The kernel copies a frame twice, to and from its own memory."
            .to_owned(),
        "Ringway reaches the host by a TAP device in a bridge; the client has another device \
         there, and reads from it or writes to it in its own time. The bridge's work for a frame \
         counts for the writer: Ringway on the way to the host, the client on the way back."
            .to_owned(),
    ]
}

struct PreparedExperiment {
    plan: Plan,
    /// Systems by cell.
    systems: Vec<Vec<(String, Path)>>,
    placement: Placement,
    window: Window,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        match self.systems[cell][system].1 {
            Path::Switch(system, depth) => self.switch(system, depth),
            Path::Kernel(at_once) => {
                let cpu = self.placement.backend;
                let tap::Ran { frames, seconds, cpu_s, other_s } =
                    tap::run(BYTES, at_once.into(), cpu, self.window)?;
                Ok(sample(frames, BYTES, (seconds, cpu_s, other_s)))
            }
            Path::Host(poll, back) => self.host(poll, back),
        }
    }
}

impl PreparedExperiment {
    fn switch(&self, system: System, depth: u16) -> Result<Sample> {
        const { assert!(BYTES < LARGEST) };
        let running = system.start(2, 1, self.placement)?;
        let sockets = [running.socket(0), running.socket(1)];
        let frames = vec![tcp(1, 2, 40_000, BYTES)];
        let lane =
            Lane::connect([&sockets[0], &sockets[1]], [1, 2], frames, Shape::new(depth, [1; 2]))?;
        self.client(lane, &running)
    }

    fn host(&self, poll: Poll, back: bool) -> Result<Sample> {
        let bridge = Bridge::create()?;
        let running = System::uplink(poll, &bridge.taps[0], self.placement)?;
        let far = Tap::open(&bridge.taps[1], 1, TapOrigin::New)?;
        bridge.join()?;
        let far = far.queue(0).context("a device without a queue")?;
        let lane = HostLane::connect(&running.socket(0), far, BYTES, DEPTHS[1], back)?;
        self.client(lane, &running)
    }

    fn client(&self, lane: impl FramePath, running: &Running) -> Result<Sample> {
        let time = || running.time_s();
        let ran = client::run(&mut [lane], self.placement.client, self.window, &time)?;
        Ok(sample_of(&ran, BYTES))
    }
}

/// Returns the client's figures for frames of this size.
pub(super) fn sample_of(ran: &Ran, bytes: usize) -> Sample {
    let mut sample = sample(ran.all(), bytes, (ran.seconds, ran.backend_s, ran.other_s));
    sample.insert("lost_frames".to_owned(), ran.lost as f64);
    sample.insert("client_cpus".to_owned(), ran.client_s / ran.seconds);
    sample
}

fn sample(frames: u64, bytes: usize, (seconds, cpu_s, other_s): (f64, f64, f64)) -> Sample {
    let gbit = frames as f64 * bytes as f64 * 8.0 / 1e9;
    let metrics = [
        ("requests", frames as f64),
        ("frames_per_s", frames as f64 / seconds),
        (RATE, gbit / seconds),
        (PER_CPU, gbit / cpu_s),
        ("backend_cpus", cpu_s / seconds),
        ("backend_cpu_us_per_request", cpu_s * 1e6 / frames.max(1) as f64),
        ("other_cpus", other_s / seconds),
    ];
    metrics.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_better_way_is_the_peer() {
        let of = |control| CELLS.map(|cell| comparisons(cell, control));
        let [few, many, uplink] = of(false);
        for (between, kernels) in [(few, 2), (many, 1)] {
            let [kernel, testpmd] = &between[..] else { panic!("two comparisons") };
            assert_eq!((kernel.bar, kernel.peers.len(), testpmd.bar), (Some(1.5), kernels, None));
        }
        let [rate, by_cpu] = &uplink[..] else { panic!("two comparisons") };
        assert_eq!((rate.peers.len(), rate.metric.as_deref()), (1, Some("gbit_per_s")));
        assert_eq!((rate.bar, by_cpu.bar), (Some(0.6), None));
        assert!(of(true).iter().flatten().all(|c| c.bar.is_none()));
    }
}
