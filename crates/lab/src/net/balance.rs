//! `net-balance`: eight large flows on four receive queues, over many draws of their ports.
//!
//! The hash alone places eight flows evenly, two on each queue, in only one of 26 draws. The
//! balancer moves flows from a queue that has more than its share.

use std::time::Duration;

use anyhow::Result;
use net::flow::{Bucket, Toeplitz};
use net::frame::{Frame, PREFIX_BYTES};

use super::client::{self, Lane, Shape, tcp, with_header};
use super::systems::{System, versions};
use super::tso::BYTES;
use crate::blk::client::Window;
use crate::blk::systems::Poll;
use crate::cpu::Placement;
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};

const FLOWS: usize = 8;
const QUEUES: u16 = 4;
/// Draws per sample.
const DRAWS: u64 = 10;
/// Run time of the flows before the count. The balancer checks ten times a second, so it runs many
/// times.
const SETTLE: Duration = Duration::from_millis(1500);
/// Frames in flight: four per flow.
const DEPTH: u16 = 32;
/// Most load of a queue over the mean of all queues, in the worst draw.
const BAR: f64 = 1.25;
const WORST: &str = "imbalance_worst";
const SYSTEMS: [&str; 2] = ["ringway-net", "(hash alone, calculated)"];
const CELL: &str = "elephants";

/// The `net-balance` experiment.
#[derive(Debug)]
pub struct NetBalance;

fn comparisons(control: bool) -> Vec<Comparison> {
    let of = |(ours, bar): (&str, Option<f64>)| Comparison {
        cell: CELL.to_owned(),
        ours: ours.to_owned(),
        figure: Figure::Worst,
        side: Side::AtMost,
        bar: bar.filter(|_| !control),
        ..Comparison::default()
    };
    SYSTEMS.into_iter().zip([Some(BAR), None]).map(of).collect()
}

impl Experiment for NetBalance {
    fn name(&self) -> &'static str {
        "net-balance"
    }

    fn summary(&self) -> &'static str {
        "eight large flows on four receive queues, many draws of ports: the most loaded queue"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let draws = if options.quick { 2 } else { DRAWS };
        let cell = CellPlan {
            id: CELL.to_owned(),
            title: format!(
                "{FLOWS} flows of {BYTES} byte frames on {QUEUES} queues, {draws} draws"
            ),
            systems: SYSTEMS.map(str::to_owned).into(),
        };
        let chosen = options.selects(CELL);
        let plan = Plan {
            cells: if chosen { vec![cell] } else { Vec::new() },
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 10 }),
            metric: WORST.to_owned(),
            comparisons: comparisons(options.control),
            versions: versions(&[OURS], false)?,
            notes: vec![format!(
                "Every draw has other source ports, from a seeded generator, and its own switch. \
                 All flows send the same, with four frames of each in flight. Draws in which three \
                 flows share one of the 128 buckets of the hash, one in 300, are left out: a \
                 bucket stays on one queue. The receiver's queues are full of buffers, as drivers \
                 keep them. Frames count after {} ms. The worst draw of all rounds decides the \
                 bars. A control run has no stand-in: no peer balances.",
                SETTLE.as_millis()
            )],
            ..Plan::default()
        };
        let window_ms = options.window_ms.unwrap_or(300);
        let measure = Duration::from_millis(window_ms);
        Ok(Box::new(PreparedExperiment { plan, placement, draws, measure, drawn: [0; 2] }))
    }
}

const OURS: System = System::Ringway(Poll::Auto);

struct PreparedExperiment {
    plan: Plan,
    placement: Placement,
    draws: u64,
    measure: Duration,
    /// Number of draws of each system so far. Both systems get the same draws.
    drawn: [u64; 2],
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, _cell: usize, system: usize) -> Result<Sample> {
        let mut all = Vec::new();
        for _ in 0..self.draws {
            let ports = ports(self.drawn[system]);
            self.drawn[system] += 1;
            let counts = if system == 0 { self.served(&ports)? } else { by_hash(&ports) };
            all.push(imbalance(&counts));
        }
        let worst = all.iter().copied().fold(0.0, f64::max);
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        let metrics = [(WORST, worst), ("imbalance_mean", mean), ("requests", all.len() as f64)];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

impl PreparedExperiment {
    /// Returns the frames on each queue of a receiver behind our switch.
    fn served(&self, ports: &[u16]) -> Result<Vec<u64>> {
        let running = OURS.start(2, QUEUES, self.placement)?;
        let sockets = [running.socket(0), running.socket(1)];
        let frames = ports.iter().map(|port| tcp(1, 2, *port, BYTES)).collect();
        let shape = Shape::new(DEPTH, [1, QUEUES]).full();
        let lane = Lane::connect([&sockets[0], &sockets[1]], [1, 2], frames, shape)?;
        let window = Window { warm: SETTLE, measure: self.measure };
        let time = || running.time_s();
        let ran = client::run(&mut [lane], self.placement.client, window, &time)?;
        Ok(ran.frames.into_iter().flatten().collect())
    }
}

/// Returns the source ports of a draw. At most two of them share a bucket, because the balancer
/// moves whole buckets and cannot balance three flows in one. This excludes 1 of 300 draws.
fn ports(draw: u64) -> Vec<u16> {
    let mut state = draw.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 20_161;
    let mut ports = Vec::new();
    let mut buckets = Vec::new();
    while ports.len() < FLOWS {
        // Marsaglia's 64-bit xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Linux's range of ephemeral ports.
        let port = 32_768 + u16::try_from(state % 28_232).unwrap_or(0);
        let bucket = bucket(port);
        let alike = buckets.iter().filter(|one| **one == bucket).count();
        if !ports.contains(&port) && alike < 2 {
            ports.push(port);
            buckets.push(bucket);
        }
    }
    ports
}

fn bucket(port: u16) -> usize {
    let bytes = tcp(1, 2, port, BYTES);
    let frame = bytes.get(with_header(0) as usize..).unwrap_or_default();
    let parsed = Frame::parse(frame.get(..PREFIX_BYTES).unwrap_or(frame), frame.len());
    let hash = parsed.ok().and_then(|frame| Toeplitz::default().of(&frame));
    hash.map_or(0, |hash| Bucket::of(hash).index())
}

/// Returns the flows on each queue by the hash alone, with buckets assigned to queues round robin.
fn by_hash(ports: &[u16]) -> Vec<u64> {
    let mut counts = vec![0; QUEUES.into()];
    for port in ports {
        counts[bucket(*port) % usize::from(QUEUES)] += 1;
    }
    counts
}

/// Returns the maximum over the mean.
fn imbalance(counts: &[u64]) -> f64 {
    let most = counts.iter().max().copied().unwrap_or(0) as f64;
    let all = counts.iter().sum::<u64>() as f64;
    most * counts.len() as f64 / all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_differ_and_collide() {
        assert!(ports(0) == ports(0) && ports(0) != ports(1));
        let all: Vec<f64> = (0..100).map(|draw| imbalance(&by_hash(&ports(draw)))).collect();
        assert!(all.iter().any(|one| *one >= 2.0), "{all:?}");
        let most_alike = |draw| {
            let all: Vec<_> = ports(draw).into_iter().map(bucket).collect();
            all.iter().map(|one| all.iter().filter(|other| one == *other).count()).max()
        };
        assert!((0..100).all(|draw| most_alike(draw) <= Some(2)), "no queue could have two each");
        assert_eq!(imbalance(&[2, 2, 2, 2]), 1.0);
        assert_eq!((comparisons(false)[0].bar, comparisons(false)[1].bar), (Some(1.25), None));
    }
}
