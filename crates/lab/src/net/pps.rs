//! `net-pps`: small and full frames from one NIC to another and back, and NICs that do nothing.
//!
//! The clients are two NICs of DPDK's virtio-user in one testpmd, which sends what it receives: a closed
//! loop of as many frames as both sent first.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testkit::process::PROCESS_DEADLINE;
use testkit::testpmd::{Counts, Memory, Nics, ReservedHugePages, Testpmd, reserve_huge_pages};

use super::idle::{self, Idle};
use super::systems::{Running, System, versions};
use crate::blk::client::Window;
use crate::blk::systems::Poll;
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample};
use crate::host::HostTime;

const SYSTEMS: [System; 5] = [
    System::Ringway(Poll::Auto),
    System::Ringway(Poll::Always),
    System::Testpmd,
    System::Ovs { sleeps: false },
    System::Ovs { sleeps: true },
];
/// Bytes of a frame, without its checksum.
const SIZES: [u16; 2] = [64, 1500];
/// Of what a peer delivers, at least.
const DELIVERED: f64 = 0.9;
/// Descriptors of each queue, and times that 32 frames are sent first by each NIC.
const QUEUE_SIZE: u16 = 1024;
const FIRST: u16 = 30;
/// Starts of switch and client whose mean is one sample: where memory lies in caches and in the host's
/// pages is drawn with each start, and changes what any of the systems does up to twofold.
const STARTS: usize = 3;
/// How long the first frames have to arrive.
const PROBE: Duration = Duration::from_millis(50);
/// MiB of the client, and what all of DPDK's processes of a turn need together.
const CLIENT_MIB: u32 = 512;
const ALL_MIB: u64 = 2048;
/// What is counted, over CPU time, and its rate.
const PER_CPU: &str = "frames_per_cpu_s";
const RATE: &str = "frames_per_s";

/// The experiment.
#[derive(Debug)]
pub struct NetPps;

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Frames of so many bytes.
    Frames(u16),
    /// NICs that do nothing.
    Idle(Idle),
}

impl Case {
    fn all() -> Vec<Self> {
        let frames = SIZES.map(Self::Frames).into_iter();
        frames.chain(idle::CASES.map(Self::Idle)).collect()
    }

    fn id(self) -> String {
        match self {
            Self::Frames(bytes) => format!("frames-{bytes}"),
            Self::Idle(idle) => idle.id(),
        }
    }

    fn title(self) -> String {
        match self {
            Self::Frames(bytes) => format!("frames of {bytes} bytes, from NIC to NIC and back"),
            Self::Idle(idle) => idle.title(),
        }
    }

    fn systems(self, control: bool) -> Vec<(String, System)> {
        match self {
            Self::Frames(_) => System::named(&SYSTEMS, control),
            Self::Idle(idle) => System::named(&idle.systems(), control),
        }
    }

    fn plan(self, control: bool) -> CellPlan {
        let systems = self.systems(control).into_iter().map(|(name, _)| name).collect();
        CellPlan { id: self.id(), title: self.title(), systems }
    }

    fn comparisons(self, control: bool) -> Vec<Comparison> {
        let systems = self.systems(control);
        let promised = !control;
        match self {
            Self::Idle(_) => idle::comparisons(&self.id(), &systems, promised),
            Self::Frames(bytes) => of_frames(&self.id(), bytes, &systems, promised),
        }
    }
}

/// Ours, with its default, beside each peer: frames per CPU second, at no less than most of its rate.
/// testpmd looks at no frame, so at 64 bytes nothing was promised about it.
fn of_frames(
    cell: &str,
    bytes: u16,
    systems: &[(String, System)],
    promised: bool,
) -> Vec<Comparison> {
    let Some(((ours, _), peers)) = systems.split_first() else { return Vec::new() };
    let of = |peer: &(String, System)| {
        let promised = promised && (bytes > 64 || peer.1 != System::Testpmd);
        let comparison = Comparison {
            cell: cell.to_owned(),
            ours: ours.clone(),
            peers: vec![peer.0.clone()],
            ..Comparison::default()
        };
        let per_cpu = Comparison {
            metric: Some(PER_CPU.to_owned()),
            bar: promised.then_some(1.0),
            beyond_spread: true,
            ..comparison.clone()
        };
        let bar = promised.then_some(DELIVERED);
        [per_cpu, Comparison { metric: Some(RATE.to_owned()), bar, ..comparison }]
    };
    // The other way in which ours polls is shown for itself.
    peers.iter().filter(|(_, system)| !system.is_ours()).flat_map(of).collect()
}

impl Experiment for NetPps {
    fn name(&self) -> &'static str {
        "net-pps"
    }

    fn summary(&self) -> &'static str {
        "64 and 1500 bytes from NIC to NIC by DPDK's virtio-user, per CPU second; CPU of idle NICs"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &Case| options.only.as_ref().is_none_or(|o| case.id().contains(o));
        let cases: Vec<_> = Case::all().into_iter().filter(wanted).collect();
        let mut versions = versions(&SYSTEMS, options.control)?;
        let (_, client) = System::Testpmd.version()?;
        versions.insert("client".to_owned(), format!("virtio-user of {client}"));
        let plan = Plan {
            cells: cases.iter().map(|case| case.plan(options.control)).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 10 }),
            metric: RATE.to_owned(),
            comparisons: cases.iter().flat_map(|c| c.comparisons(options.control)).collect(),
            versions,
            notes: notes(placement),
            ..Plan::default()
        };
        let options = options.clone();
        let pages = reserve_huge_pages(ALL_MIB)?;
        Ok(Box::new(Ready { plan, cases, placement, options, _pages: pages }))
    }
}

fn notes(placement: Placement) -> Vec<String> {
    vec![
        format!(
            "Switch on CPU {}, the client on CPU {}: two NICs of DPDK's virtio-user in one testpmd, one \
             thread, split rings of {QUEUE_SIZE}, huge pages, some thousand frames on their way in \
             each direction at most, each of another flow. Frames are counted where they arrive, in both \
             directions. A sample is the mean of {STARTS} starts of both (one with --quick), since where \
             their memory lies is drawn with each; their huge pages are the same ones, {ALL_MIB} MiB that \
             are reserved for the run.",
            placement.backend, placement.client
        ),
        "`testpmd` forwards from one socket to another and looks at no frame; `ovs-dpdk` is a learning \
         switch (NORMAL), as ours is. Both spin: their frames per CPU second are what they deliver. \
         Where the client is the slower one, a switch that sleeps meanwhile is the cheaper one."
            .to_owned(),
        "Idle: rings are started and buffers posted by front-ends that then do nothing.".to_owned(),
    ]
}

struct Ready {
    plan: Plan,
    cases: Vec<Case>,
    placement: Placement,
    options: Options,
    /// For all that run, one after the other.
    _pages: ReservedHugePages,
}

impl Prepared for Ready {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        let (_, system) = case.systems(self.options.control)[system];
        let millis = |default| Duration::from_millis(self.options.window_ms.unwrap_or(default));
        match case {
            Case::Frames(bytes) => {
                let starts = if self.options.quick { 1 } else { STARTS };
                let started = |_| {
                    let running = system.start(2, 1, self.placement)?;
                    frames(&running, bytes, Window::of(millis(400)), self.placement)
                };
                Ok(mean((0..starts).map(started).collect::<Result<_>>()?))
            }
            Case::Idle(idle) => idle.measure(system, millis(10_000), self.placement),
        }
    }
}

/// The mean of each metric.
fn mean(samples: Vec<Sample>) -> Sample {
    let count = samples.len() as f64;
    let mut all = Sample::new();
    for (name, value) in samples.into_iter().flatten() {
        *all.entry(name).or_default() += value / count;
    }
    all
}

/// What arrives at both NICs of a client.
fn frames(running: &Running, bytes: u16, window: Window, at: Placement) -> Result<Sample> {
    let sockets: Vec<PathBuf> = (0..2).map(|port| running.socket(port)).collect();
    let nics = Nics {
        sockets,
        queue_size: QUEUE_SIZE,
        memory: Memory::Huge,
        memory_mib: CLIENT_MIB,
        buffers: 32_768,
        frame_bytes: bytes,
        cpu: Some(at.client),
        ..Nics::default()
    };
    let mut client = nics.start()?;
    wait_for_ports(&mut client)?;
    client.command(&format!("start tx_first {FIRST}"))?;
    std::thread::sleep(window.warm);
    let before = counts(&mut client)?;
    let (cpu, host, start) = (running.time_s()?, HostTime::now()?, Instant::now());
    let mine = cpu::process_time_s(client.id())?;
    let sum = |counts: &[Counts; 2], of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let after = loop {
        std::thread::sleep(window.measure);
        let after = counts(&mut client)?;
        // On a busy host the client may not have had its CPU meanwhile.
        let some = sum(&after, |c| c.received) > sum(&before, |c| c.received);
        if some || start.elapsed() > PROCESS_DEADLINE {
            break after;
        }
    };
    let (cpu, seconds) = (running.time_s()? - cpu, start.elapsed().as_secs_f64());
    let mine = cpu::process_time_s(client.id())? - mine;
    let busy = HostTime::now()?.busy_s - host.busy_s;
    client.quit()?;
    // By its own clock: it answers when its CPU has time for that.
    let rate = after.iter().map(|counts| counts.received_per_s).sum::<u64>() as f64;
    let frames = sum(&after, |c| c.received) - sum(&before, |c| c.received);
    ensure!(frames > 0 && rate > 0.0, "no frame arrives");
    let failed = sum(&after, |c| c.failed) - sum(&before, |c| c.failed);
    let metrics = [
        ("requests", frames as f64),
        ("lost_frames", failed as f64),
        // The same for all, or the loop has lost some.
        ("under_way", sum(&after, |c| c.sent) as f64 - sum(&after, |c| c.received) as f64),
        (RATE, rate),
        (PER_CPU, rate / (cpu / seconds)),
        ("gbit_per_s", rate * f64::from(bytes) * 8.0 / 1e9),
        ("backend_cpus", cpu / seconds),
        ("client_cpus", mine / seconds),
        ("other_cpus", (busy - cpu - mine).max(0.0) / seconds),
    ];
    Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Sends a few frames until some have arrived at both ends: a switch may take a while to see that a
/// front-end is there, and has lost by then what that sent first.
fn wait_for_ports(client: &mut Testpmd) -> Result<()> {
    let until = Instant::now() + PROCESS_DEADLINE;
    loop {
        client.command("start tx_first 1")?;
        std::thread::sleep(PROBE);
        client.command("stop")?;
        if counts(client)?.iter().all(|counts| counts.received > 0) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "no frame arrives");
    }
}

fn counts(client: &mut Testpmd) -> Result<[Counts; 2]> {
    Ok([client.counts(0)?, client.counts(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_the_mean_of_its_starts() {
        let of = |rate: f64| Sample::from([("rate".to_owned(), rate), ("same".to_owned(), 2.0)]);
        let both = mean(vec![of(1.0), of(4.0)]);
        assert_eq!((both["rate"], both["same"], both.len()), (2.5, 2.0, 2));
    }

    #[test]
    fn what_is_promised_of_frames() {
        let bars = |bytes: u16, control| {
            let all = Case::Frames(bytes).comparisons(control);
            all.into_iter().filter(|c| c.bar.is_some()).collect::<Vec<_>>()
        };
        assert_eq!((bars(64, false).len(), bars(1500, false).len()), (4, 6));
        assert!(bars(1500, true).is_empty());
        for bar in bars(1500, false) {
            let per_cpu = bar.metric.as_deref() == Some(PER_CPU);
            assert_eq!(bar.bar, Some(if per_cpu { 1.0 } else { 0.9 }));
            assert_eq!(
                (bar.beyond_spread, bar.ours.as_str()),
                (per_cpu, "ringway-net --poll auto")
            );
        }
    }
}
