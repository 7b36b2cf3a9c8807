//! `greedy-front-ends`: pause of a disk's client while other front-ends of its process take as much
//! memory as they get.
//!
//! The client is never idle: it reads, writes and compares. Meanwhile eight other front-ends
//! connect, share memory until they are refused, and disconnect, again and again. A pause is the
//! longest request of the client in one such attack. Nothing may fail, and the client may not have
//! to reconnect.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use testkit::process::{RingwayIo, Target};
use testkit::raw::GreedyFrontend;
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;
use crate::stats::pause_metrics;

/// Bar for the 99th percentile of the pauses, in milliseconds.
const P99_MS: f64 = 200.0;
/// Attacks per sample, and with `--quick`.
const ATTACKS: usize = 30;
const ATTACKS_QUICK: usize = 3;
/// Front-ends of an attack, each at a disk of its own.
const FRONT_ENDS: usize = 8;
/// Time of load between checks whether an attack has ended.
const SLICE: Duration = Duration::from_millis(20);
/// Size of a disk, in bytes.
const BYTES: u64 = 16 << 20;
/// Most regions of a front-end in the protocol.
const REGIONS_MAX: u64 = 509;

const SYSTEM: &str = "ringway-io";

/// The `greedy-front-ends` experiment.
#[derive(Debug)]
pub struct GreedyFrontEnds;

/// Memory that the front-ends share.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Addresses: 32 regions of 512 GiB each.
    Addresses,
    /// Regions: 509 of a page each.
    Regions,
    /// None, as a control.
    None,
}

const ALL: [Attack; 3] = [Attack::Addresses, Attack::Regions, Attack::None];

impl Attack {
    fn cell(self) -> &'static str {
        match self {
            Self::Addresses => "addresses",
            Self::Regions => "regions",
            Self::None => "none",
        }
    }

    fn plan(self) -> CellPlan {
        let title = match self {
            Self::Addresses => format!("{FRONT_ENDS} front-ends ask for 16 TiB each"),
            Self::Regions => format!("{FRONT_ENDS} front-ends ask for {REGIONS_MAX} regions each"),
            Self::None => format!("{FRONT_ENDS} front-ends connect and share nothing"),
        };
        CellPlan { id: self.cell().to_owned(), title, systems: vec![SYSTEM.to_owned()] }
    }

    fn comparison(self) -> Comparison {
        Comparison {
            cell: self.cell().to_owned(),
            ours: SYSTEM.to_owned(),
            figure: Figure::Alone,
            side: Side::AtMost,
            bar: Some(P99_MS),
            ..Comparison::default()
        }
    }

    /// Connects the front-ends one after the other, and disconnects all of them.
    fn run(self, io: &RingwayIo) -> Result<()> {
        let (bytes, most) = match self {
            Self::Addresses => (512 << 30, 32),
            Self::Regions => (4096, REGIONS_MAX),
            Self::None => (4096, 0),
        };
        let socket = |number: usize| io.socket(&format!("g{number}"));
        let connect = |number| GreedyFrontend::connect(&socket(number), bytes, most);
        (0..FRONT_ENDS).map(connect).collect::<Result<Vec<_>, _>>()?;
        Ok(())
    }
}

impl Experiment for GreedyFrontEnds {
    fn name(&self) -> &'static str {
        "greedy-front-ends"
    }

    fn summary(&self) -> &'static str {
        "pause of a disk's client while other front-ends take all memory that they get"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells: Vec<_> = ALL.into_iter().filter(|one| options.selects(one.cell())).collect();
        let attacks = if options.quick { ATTACKS_QUICK } else { ATTACKS };
        let plan = Plan {
            cells: cells.iter().map(|attack| attack.plan()).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "p99_ms".to_owned(),
            comparisons: cells.iter().map(|attack| attack.comparison()).collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![format!("{attacks} attacks a sample.")],
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment { plan, cells, attacks }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cells: Vec<Attack>,
    attacks: usize,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, _: usize) -> Result<Sample> {
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let io = RingwayIo::start(dir.path(), &[])?;
        let disks = (0..FRONT_ENDS).map(|number| format!("g{number}")).chain(["client".into()]);
        for disk in disks {
            io.attach_target(&disk, &Target::Memory(BYTES), &[])?;
        }
        let mut client = ReconnectingGuest::connect(&io.socket("client"), Shape::default())?;
        let attack = self.cells[cell];
        let pauses = (0..self.attacks).map(|_| pause_during(&io, attack, &mut client));
        let pauses = pauses.collect::<Result<Vec<_>>>()?;
        client.finish()?;
        Ok(pause_metrics(&pauses).into())
    }
}

/// Attacks the process while the client works. Returns the client's longest request.
fn pause_during(
    io: &RingwayIo,
    attack: Attack,
    client: &mut ReconnectingGuest,
) -> Result<Duration> {
    std::thread::scope(|scope| {
        let attacking = scope.spawn(|| attack.run(io));
        let mut work = || {
            let end = client.run(Instant::now() + SLICE)?;
            ensure!(end == End::Time, "the attack ended the connection of the client");
            anyhow::Ok(())
        };
        while !attacking.is_finished() {
            work()?;
        }
        attacking.join().map_err(|_| anyhow!("the attack panicked"))??;
        work()?;
        Ok(client.take_longest_request())
    })
}
