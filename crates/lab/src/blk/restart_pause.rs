//! `restart-pause`: pause of a client whose disk's process is killed under load.
//!
//! A client reads, writes and compares with many requests in flight. Its backend is killed with
//! SIGKILL at random times and starts again, by its keeper or as a service manager would start it.
//! A pause lasts from the start of the reconnect to the first completion of a queue. Every request
//! must complete, and every read must return the data that was written.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::process::{PROCESS_DEADLINE, RestartingDisk, RestartingServer, ServerProgram, Target};
use testkit::reconnecting::{End, Random, ReconnectingGuest, Shape};

use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;
use crate::stats::pause_metrics;

/// Bar for the 99th percentile of the pauses, in milliseconds.
const P99_MS: f64 = 100.0;
/// Kills per sample, and with `--quick`.
const KILLS: usize = 50;
const KILLS_QUICK: usize = 5;
/// Longest life of a process, in microseconds: enough for many batches of requests.
const LIFE_US_MAX: u64 = 12_000;
/// Size of the disk, in bytes.
const BYTES: u64 = 16 << 20;
const QUEUES: u16 = 4;
const DEPTH: u16 = 64;

/// The `restart-pause` experiment.
#[derive(Debug)]
pub struct RestartPause;

/// Storage of the disk.
#[derive(Clone, Copy, Debug)]
enum Storage {
    Memory,
    File,
}

impl Storage {
    fn cell(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
        }
    }

    /// Returns the programs that keep the content over a kill. Memory survives with the keeper.
    fn programs(self) -> &'static [ServerProgram] {
        let all = &[ServerProgram::Io, ServerProgram::SupervisedBlk, ServerProgram::Blk];
        match self {
            Self::Memory => &all[..2],
            Self::File => all,
        }
    }

    fn plan(self) -> CellPlan {
        CellPlan {
            id: self.cell().to_owned(),
            title: format!("{} disk, {QUEUES} queues of {DEPTH} requests", self.cell()),
            systems: self.programs().iter().map(|program| name(*program).to_owned()).collect(),
        }
    }

    fn comparisons(self) -> impl Iterator<Item = Comparison> {
        self.programs().iter().map(move |program| Comparison {
            cell: self.cell().to_owned(),
            ours: name(*program).to_owned(),
            figure: Figure::Alone,
            side: Side::AtMost,
            bar: Some(P99_MS),
            ..Comparison::default()
        })
    }
}

fn name(program: ServerProgram) -> &'static str {
    match program {
        ServerProgram::Io => "ringway-io",
        ServerProgram::SupervisedBlk => "ringway-blk --supervise",
        ServerProgram::Blk => "ringway-blk, started again by the lab",
    }
}

impl Experiment for RestartPause {
    fn name(&self) -> &'static str {
        "restart-pause"
    }

    fn summary(&self) -> &'static str {
        "pause of a client whose disk's process is killed under load and starts again"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let wanted = |one: &Storage| options.selects(one.cell());
        let cells: Vec<_> = [Storage::Memory, Storage::File].into_iter().filter(wanted).collect();
        let kills = if options.quick { KILLS_QUICK } else { KILLS };
        let plan = Plan {
            cells: cells.iter().map(|storage| storage.plan()).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "p99_ms".to_owned(),
            comparisons: cells.iter().flat_map(|storage| storage.comparisons()).collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![format!(
                "{kills} kills a sample, after at most {} ms of load. Each queue has its own \
                 pause. Reads are compared with the data that was written.",
                LIFE_US_MAX / 1000
            )],
            ..Plan::default()
        };
        let scratch = options.scratch.clone().unwrap_or_else(|| "/var/tmp".into());
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir_in(&scratch);
        let dir = dir.with_context(|| format!("no images in {}", scratch.display()))?;
        Ok(Box::new(PreparedExperiment { plan, cells, kills, dir, samples: 0 }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cells: Vec<Storage>,
    kills: usize,
    dir: TempDir,
    /// Number of samples so far, the seed of the next one.
    samples: u64,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let storage = self.cells[cell];
        let program = *storage.programs().get(system).context("there is no such system")?;
        self.samples += 1;
        let target = match storage {
            Storage::Memory => Target::Memory(BYTES),
            Storage::File => {
                let image = self.dir.path().join("image");
                // The client requires a disk that reads as zeroes.
                std::fs::File::create(&image)?.set_len(BYTES)?;
                Target::File(image)
            }
        };
        let disk = RestartingDisk { program, target, queues: QUEUES, cache: "none" };
        let mut server = RestartingServer::start(&disk)?;
        let shape = Shape { queues: QUEUES, depth: DEPTH, seed: self.samples, ..Shape::default() };
        let mut random = Random::new(self.samples);
        let mut client = ReconnectingGuest::connect(&server.socket(), shape)?;
        for _ in 0..self.kills {
            let life = Duration::from_micros(random.below(LIFE_US_MAX));
            while client.run(Instant::now() + life)? == End::Closed {
                reconnect(&mut client)?;
            }
            server.serving()?.kill()?;
            let ended = client.run(Instant::now() + PROCESS_DEADLINE)?;
            ensure!(ended == End::Closed, "the client did not see that its backend died");
            client.offer()?;
            server.start_again()?;
            reconnect(&mut client)?;
        }
        client.finish()?;
        Ok(sample(&client))
    }
}

/// Reconnects. The client may reach a process that is about to die.
fn reconnect(client: &mut ReconnectingGuest) -> Result<()> {
    let until = Instant::now() + PROCESS_DEADLINE;
    loop {
        match client.reconnect() {
            Err(error) if error.is_hang_up() && Instant::now() < until => {}
            other => return Ok(other?),
        }
    }
}

fn sample(client: &ReconnectingGuest) -> Sample {
    let tally = client.tally();
    let requests = ("requests".to_owned(), tally.completed as f64);
    pause_metrics(&tally.pauses).into_iter().chain([requests]).collect()
}
