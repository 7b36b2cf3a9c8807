//! `restart-pause`: pause of a client whose disk's process is killed under load.
//!
//! A client reads, writes and compares with many requests in flight. Its backend is killed with
//! SIGKILL at random times and starts again, by its keeper or as a service manager would start it.
//! A pause lasts from the start of the reconnect to the first completion of a queue. Every request
//! must complete, and every read must return the data that was written.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use testkit::process::{Backend, PROCESS_DEADLINE, Process, RingwayIo};
use testkit::reconnecting::{End, Random, ReconnectingGuest, Shape};

use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;
use crate::stats::percentile;

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

/// Program that serves the disk. Its keeper starts it again, or the lab as a service manager.
#[derive(Clone, Copy, Debug)]
enum Program {
    Io,
    Supervised,
    Blk,
}

impl Storage {
    fn cell(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
        }
    }

    /// Returns the programs that keep the content over a kill. Memory survives with the keeper.
    fn programs(self) -> &'static [Program] {
        match self {
            Self::Memory => &[Program::Io, Program::Supervised],
            Self::File => &[Program::Io, Program::Supervised, Program::Blk],
        }
    }

    fn plan(self) -> CellPlan {
        CellPlan {
            id: self.cell().to_owned(),
            title: format!("{} disk, {QUEUES} queues of {DEPTH} requests", self.cell()),
            systems: self.programs().iter().map(|program| program.name().to_owned()).collect(),
        }
    }

    fn comparisons(self) -> impl Iterator<Item = Comparison> {
        self.programs().iter().map(move |program| Comparison {
            cell: self.cell().to_owned(),
            ours: program.name().to_owned(),
            figure: Figure::Alone,
            side: Side::AtMost,
            bar: Some(P99_MS),
            ..Comparison::default()
        })
    }
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Io => "ringway-io",
            Self::Supervised => "ringway-blk --supervise",
            Self::Blk => "ringway-blk, started again by the lab",
        }
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
        let wanted =
            |one: &Storage| options.only.as_ref().is_none_or(|only| one.cell().contains(&**only));
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
        let image = self.dir.path().join("image");
        // The client requires a disk that reads as zeroes.
        std::fs::File::create(&image)?.set_len(BYTES)?;
        let mut server = Server::start(program, storage, &image)?;
        let shape = Shape { queues: QUEUES, depth: DEPTH, seed: self.samples, ..Shape::default() };
        let mut random = Random::new(self.samples);
        let mut client = ReconnectingGuest::connect(&server.socket(), shape)?;
        for _ in 0..self.kills {
            let life = Duration::from_micros(random.below(LIFE_US_MAX));
            while client.run(Instant::now() + life)? == End::Closed {
                reconnect(&mut client)?;
            }
            server.kill()?;
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
    let mut pauses: Vec<_> = tally.pauses.iter().map(|pause| pause.as_secs_f64() * 1e3).collect();
    let [p50, p99, max] = [50, 99, 100].map(|percent| percentile(&mut pauses, percent));
    Sample::from([
        ("requests".to_owned(), tally.completed as f64),
        ("p50_ms".to_owned(), p50),
        ("p99_ms".to_owned(), p99),
        ("max_ms".to_owned(), max),
    ])
}

/// Running program.
enum Server {
    /// `killed` is the worker that was killed last, and `_dir` the directory of its sockets.
    Io {
        io: RingwayIo,
        killed: Option<u32>,
        _dir: TempDir,
    },
    Supervised(Backend, Option<u32>),
    Blk(Backend),
}

impl Server {
    fn start(program: Program, storage: Storage, image: &Path) -> Result<Self> {
        let (queues, bytes) = (QUEUES.to_string(), BYTES.to_string());
        let path = image.display().to_string();
        let disk = match storage {
            Storage::Memory => ["--memory", &bytes],
            Storage::File => ["--blk-file", &path],
        };
        let blk = [&disk[..], &["--num-queues", &queues]].concat();
        let at_once = ["--restart-pause-max", "0"];
        Ok(match program {
            Program::Io => {
                let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
                let io = RingwayIo::start(dir.path(), &[])?;
                let queues = format!("queues={QUEUES}");
                match storage {
                    Storage::Memory => {
                        let socket = format!("socket={}", io.socket("d").display());
                        let memory = format!("backend.memory={BYTES}");
                        let words = ["io", "disk.attach", "id=d", &socket, &memory, &queues];
                        io.ringway(&words)?;
                    }
                    Storage::File => io.attach("d", image, &[&queues])?,
                }
                Self::Io { io, killed: None, _dir: dir }
            }
            Program::Supervised => {
                let options = [&blk[..], &["--supervise"], &at_once].concat();
                Self::Supervised(Backend::ringway_blk(&options)?, None)
            }
            Program::Blk => Self::Blk(Backend::ringway_blk(&blk)?),
        })
    }

    fn socket(&self) -> PathBuf {
        match self {
            Self::Io { io, .. } => io.socket("d"),
            Self::Supervised(backend, _) | Self::Blk(backend) => backend.socket().to_owned(),
        }
    }

    /// Kills the process that serves the disk.
    fn kill(&mut self) -> Result<()> {
        match self {
            Self::Io { io, killed, .. } => kill_worker(&mut io.process, killed),
            Self::Supervised(backend, killed) => kill_worker(&mut backend.process, killed),
            Self::Blk(backend) => Ok(backend.process.kill().map(drop)?),
        }
    }

    /// Starts the process again, if no keeper does.
    fn start_again(&mut self) -> Result<()> {
        match self {
            Self::Io { .. } | Self::Supervised(..) => Ok(()),
            Self::Blk(backend) => Ok(backend.start_again()?),
        }
    }
}

/// Kills the keeper's current worker, which is not the one that was killed before.
fn kill_worker(keeper: &mut Process, killed: &mut Option<u32>) -> Result<()> {
    let worker = keeper.next_worker(*killed)?;
    *killed = Some(worker.id());
    Ok(worker.kill()?)
}
