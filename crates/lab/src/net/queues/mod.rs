//! `net-queues`: TCP streams over pairs of queues, between two guests and between a guest and the host.
//!
//! The documents' matrix: 1, 2, 4 and 8 streams over as many pairs. A guest of User-Mode Linux has one
//! CPU, so what this shows here is what pairs cost, and that streams are spread; not how it scales. What
//! pairs cost one stream is also seen without that guest's own part: between NICs of the lab's client,
//! and between guests of QEMU.

mod cases;
mod way;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::guest::artifacts;
use testkit::process::{RingwayNet, find_tool};

use cases::{Case, PEERS, plot};
use way::{OURS, Way};

use super::client::{self, Lane, Shape, tcp};
use super::guests::{self, End, Streams};
use super::relay;
use super::systems::{System, versions};
use super::tap::{self, Bridge, Device};
use super::tso;
use crate::blk::client::Window;
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Experiment, Options, Plan, Prepared, Sample};
use crate::host::versions as tools;
use crate::inside::Inside;
use crate::pace::Pace;
use crate::slices::{SLICES, STARTS, Slice, least_disturbed, of_starts};
use crate::wake::wake_us;

/// Times that each is measured in a boot of its guests.
const REPEATS: usize = 4;
/// How long a slice between NICs is.
const SLICE_MS: u64 = 100;
/// How long a start of those waits for slices in which the host leaves the CPUs alone.
const PATIENCE: Duration = Duration::from_secs(2);

/// The experiment.
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
            systems: case.ways(options).into_iter().map(Way::name).collect(),
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
            notes: notes(placement)?,
            plots: vec![plot(&cases, options)],
            ..Plan::default()
        };
        // NICs without guests are all that keeps to two CPUs.
        let pace = cases.iter().any(|case| case.is_bare());
        let pace = pace.then(|| Pace::of([placement.backend, placement.client])).transpose()?;
        Ok(Box::new(Ready { plan, cases, placement, pace, options: options.clone() }))
    }
}

fn notes(placement: Placement) -> Result<Vec<String>> {
    let Placement { backend, client } = placement;
    let (same, other) = (wake_us(client, client)?, wake_us(client, backend)?);
    let notes = vec![
        format!(
            "Guests are User-Mode Linux with one CPU each, or where a title says so QEMU without KVM, and \
             iperf3 {}: booted for each turn, on whatever CPU is free, {REPEATS} runs in each boot, of \
             which the columns are the mean and the standard deviation. `testpmd` and Open vSwitch are on CPU {}; ours is where the host puts it. With \
             two CPUs for two guests and a switch they take each other's time: a switch that spins \
             takes half of all.",
            "-w 256k -l 256k", placement.backend
        ),
        format!(
            "To wake somebody on another CPU takes {other:.1} us here, on the same one {same:.1}. Guests and a \
             switch that sleeps wake each other for each handful of segments; a switch that spins is not woken, and \
             leaves one CPU to both guests, which then wake each other there."
        ),
        "A control queue is served by ours only, so peers have one pair, and to `testpmd` and Open vSwitch \
         guests go by a relay that leaves it out of the offer; no frame goes through that. The kernel's bridge, and its \
         TAP device with the host behind it, work in the guests' own time, or in that of their QEMU: they have no \
         process whose CPU time could be told. TAP devices have a queue for each pair of a guest of QEMU."
            .to_owned(),
        format!(
            "NICs without guests are the lab's own, one thread on CPU {}, with 32 frames on their way. All \
             pairs are started, and the flow uses one. They send for {SLICE_MS} ms at a time, and before and \
             after it is looked how the CPUs do, as `net-pps` does: the {SLICES} slices of a start count in \
             which that was best; the column \"pace\" has the lowest of those, 1 at best. A sample is the mean \
             of {STARTS} starts.",
            placement.client
        ),
        "What pairs cost one stream is judged between these. Where guests stream, a spread that is larger than \
         what is lost excuses that: a boot on other CPUs changes more."
            .to_owned(),
    ];
    Ok(notes)
}

struct Ready {
    plan: Plan,
    cases: Vec<Case>,
    placement: Placement,
    /// Of those CPUs, for NICs without guests.
    pace: Option<Pace>,
    options: Options,
}

impl Prepared for Ready {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        let ways = case.ways(&self.options);
        let way = *ways.get(system).context("there is no such system")?;
        let window = Duration::from_millis(self.options.window_ms.unwrap_or(1000));
        let streams = Streams { count: case.streams, back: false, repeats: REPEATS, window };
        match way {
            Way::Switch(system, pairs) => switch(system, pairs, pairs, streams, self.placement),
            Way::OneOf(pairs) => switch(OURS, pairs, 1, streams, self.placement),
            Way::Nics(pairs, bytes) => {
                let quick = self.options.quick;
                of_starts(quick, PATIENCE, |patience| self.nics(pairs, bytes, patience))
            }
            Way::Emulated(pairs) => emulated(pairs, streams, self.placement),
            Way::Bridge => {
                let bridge = Bridge::with_devices(1)?;
                let [server, client] = [0, 1].map(|n| End::tap(&bridge.taps[n]));
                let _server = server.listen(REPEATS)?;
                streams.measure(&client, None)
            }
            Way::EmulatedBridge(pairs) => {
                let bridge = Bridge::with_devices(pairs)?;
                let [server, client] = [0, 1].map(|n| End::emulated_tap(&bridge.taps[n], n, pairs));
                let _server = server.listen(REPEATS)?;
                streams.measure(&client, None)
            }
            Way::Host(pairs, back) => host(pairs, Streams { back, ..streams }),
            Way::Tap(back) => {
                let device = Device::with_address(guests::ADDRESSES[0])?;
                let _servers = guests::host_listens(REPEATS)?;
                Streams { back, ..streams }.measure(&End::tap(&device.0), None)
            }
        }
    }
}

impl Ready {
    /// One flow between NICs of the lab's client, which has one CPU, and the switch the other.
    fn nics(&mut self, pairs: u16, bytes: usize, patience: Duration) -> Result<Sample> {
        let pace = self.pace.as_mut().context("nobody has looked at the CPUs")?;
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
            let before = pace.undisturbed(until)?;
            let ran = client::run(&mut lane, self.placement.client, window, &time)?;
            let sample = tso::sample_of(&ran, bytes);
            Ok(Slice { pace: before.min(pace.now()?), sample })
        })
    }
}

/// Guests of QEMU, which take all pairs.
fn emulated(pairs: u16, streams: Streams, at: Placement) -> Result<Sample> {
    let running = OURS.start_anywhere(2, pairs, at)?;
    let [server, client] = [0, 1].map(|n| End::emulated(&running.socket(n), n, pairs));
    let _server = server.listen(REPEATS)?;
    streams.measure(&client, Some(&|| running.time_s()))
}

/// NICs have `pairs`, of which guests use `used`.
fn switch(
    system: System,
    pairs: u16,
    used: u16,
    streams: Streams,
    at: Placement,
) -> Result<Sample> {
    let running = system.start_anywhere(2, pairs, at)?;
    let front = |n| front(system, running.socket(n), at.client);
    let fronts = [front(0)?, front(1)?];
    let [server, client] = [0, 1].map(|n| End::vhost_user(&fronts[n].0, used));
    let _server = server.listen(REPEATS)?;
    streams.measure(&client, Some(&|| running.time_s()))
}

/// Where a guest connects to a port of a switch, by a relay if it is not ours.
fn front(system: System, socket: PathBuf, cpu: usize) -> Result<(PathBuf, Option<Inside>)> {
    if system.is_ours() {
        return Ok((socket, None));
    }
    let front = socket.with_extension("relay");
    let relay = relay::start(front.clone(), socket, cpu)?;
    Ok((front, Some(relay)))
}

/// The host is at our switch by a TAP device.
fn host(pairs: u16, streams: Streams) -> Result<Sample> {
    let dir = tempfile::Builder::new().prefix("rwlab-").tempdir()?;
    let (socket, device) = (dir.path().join("a"), tap::name("u", 0));
    let sockets = [socket.clone()];
    let pairs_word = pairs.to_string();
    let switch = RingwayNet::start(&sockets, &["--queues", &pairs_word, "--tap", &device])?;
    tap::up(&device)?;
    // The device of the turn before may be there still, with its address.
    tap::ip(&format!("addr replace {}/24 dev {device}", guests::ADDRESSES[0]))?;
    let _servers = guests::host_listens(REPEATS)?;
    let time = || cpu::process_time_s(switch.process.id());
    streams.measure(&End::vhost_user(&socket, pairs), Some(&time))
}
