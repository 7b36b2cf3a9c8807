//! `net-pps`: small and full frames from one NIC to another and back, and idle NICs.
//!
//! The clients are two NICs of DPDK's virtio-user in one testpmd, which sends what it receives. The
//! closed loop contains the frames that both sent first.

mod closed;

use std::time::Duration;

use anyhow::Result;
use testkit::testpmd::{ReservedHugePages, reserve_huge_pages};

use closed::{ClosedLoop, PER_CPU, QUEUE_SIZE, RATE};

use super::idle::{self, Idle};
use super::systems::{System, versions};
use crate::blk::systems::Poll;
use crate::cpu::Placement;
use crate::cpu_speed::CpuPairSpeed;
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample};
use crate::slices::{SLICES, STARTS, of_starts};

const SYSTEMS: [System; 5] = [
    System::Ringway(Poll::Auto),
    System::Ringway(Poll::Always),
    System::Testpmd,
    System::Ovs { sleeps: false },
    System::Ovs { sleeps: true },
];
/// Size of a frame in bytes, without its checksum.
const SIZES: [u16; 2] = [64, 1500];
/// Least share of a peer's frame rate.
const DELIVERED: f64 = 0.9;
/// Length of a slice in milliseconds. It is shorter than the typical pause of neighbours on the
/// host.
const SLICE_MS: u64 = 60;
/// Longest wait of a start for slices with undisturbed CPUs.
const PATIENCE: Duration = Duration::from_secs(3);
/// Memory in MiB that all DPDK processes of a sample need together.
const ALL_MIB: u64 = 2048;

/// The `net-pps` experiment.
#[derive(Debug)]
pub struct NetPps;

/// Cell of the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Frames of this size in bytes.
    Frames(u16),
    /// Idle NICs.
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

/// Compares our default with each peer: frames per CPU second, and at least most of its frame rate.
/// testpmd inspects no frame, so there is no bar against it at 64 bytes.
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
    // Our other polling mode is shown without a comparison.
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
        let wanted = |case: &Case| options.selects(&case.id());
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
        Ok(Box::new(PreparedExperiment {
            plan,
            cases,
            placement,
            cpu_pair_speed: None,
            options,
            pages: None,
        }))
    }
}

fn notes(placement: Placement) -> Vec<String> {
    vec![
        format!(
            "Switch on CPU {}, the client on CPU {}: two NICs of DPDK's virtio-user in one \
             testpmd, one thread, split rings of {QUEUE_SIZE}, huge pages, at most some thousand \
             frames in flight in each direction, each of another flow. Frames are counted where \
             they arrive, in both directions, in slices of {SLICE_MS} ms. All starts use the same \
             huge pages, {ALL_MIB} MiB that are reserved for the run.",
            placement.backend, placement.client
        ),
        format!(
            "Before and after each slice both are stopped, and the lab measures the CPUs: whether \
             each has its own core, and whether both share a cache. In a virtual machine that \
             changes all the time, and it changes the result of any system up to threefold. Of \
             each start, the {SLICES} slices with the best CPUs count; the column \"pace\" has the \
             lowest value of those, 1 at best. A sample is the mean of {STARTS} starts, because \
             each start places its buffers anew."
        ),
        "`testpmd` forwards from one socket to another and inspects no frame; `ovs-dpdk` is a \
         learning switch (NORMAL), as Ringway's is. Both spin: their frames per CPU second are \
         what they deliver. If the client is slower than the switch, a switch that sleeps uses \
         less CPU."
            .to_owned(),
        "Idle: rings are started and buffers posted by front-ends that then do nothing.".to_owned(),
    ]
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<Case>,
    placement: Placement,
    /// Speed of the two CPUs, for frames. Its search takes seconds, so the first use begins it.
    cpu_pair_speed: Option<CpuPairSpeed>,
    options: Options,
    /// Huge pages for all processes, which run one after the other. Plans alone need none.
    pages: Option<ReservedHugePages>,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        let (_, system) = case.systems(self.options.control)[system];
        let millis = |default| Duration::from_millis(self.options.window_ms.unwrap_or(default));
        if self.pages.is_none() {
            self.pages = Some(reserve_huge_pages(ALL_MIB)?);
        }
        match case {
            Case::Frames(bytes) => of_starts(self.options.quick, PATIENCE, |patience| {
                let cpus = [self.placement.backend, self.placement.client];
                let cpu_pair_speed = CpuPairSpeed::found_or_of(&mut self.cpu_pair_speed, cpus)?;
                let switch = system.start(2, 1, self.placement)?;
                let running = ClosedLoop::start(switch, bytes, self.placement)?;
                running.measure(millis(SLICE_MS), patience, cpu_pair_speed)
            }),
            Case::Idle(idle) => idle.measure(system, millis(10_000), self.placement),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
