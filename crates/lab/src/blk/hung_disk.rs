//! `hung-disk`: effect on its neighbours of a disk whose storage never completes.
//!
//! One `ringway-io` with one reactor serves all disks for the whole run. One disk is a block device
//! on a frozen file system. Its writes, reads and a flush hang in the kernel while the lab measures
//! the neighbours. Then the storage completes, and the lab measures the neighbours again. Both
//! cases alternate.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use testkit::driver::{self, Driver, Queue};
use testkit::process::RingwayIo;
use testkit::storage::Hanging;

use super::client::{self, Load, Wait, Window};
use super::image;
use super::image::DISK_BYTES;
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample};
use crate::host::versions;

/// Least 1 / percentile of the neighbours beside a hung disk, over the same beside an idle disk.
const BAR: f64 = 0.9;
/// Names of the systems, in order.
const SYSTEMS: [&str; 2] = ["beside a hung disk", "beside an idle disk"];
/// Compared metric: 1 / percentile, in 1/s.
const METRIC: &str = "1/percentile";
/// Number of hung writes, and of reads behind them. One flush follows.
const EACH: u16 = 32;
const HUNG_BYTES: usize = 16 << 20;
/// Time without a completion after which the disk counts as hung.
const SILENT: Duration = Duration::from_millis(20);

/// The `hung-disk` experiment.
#[derive(Debug)]
pub struct HungDisk;

/// Neighbour of the hung disk, its load, and the percentile that counts.
#[derive(Clone, Copy, Debug)]
struct Case {
    disk: &'static str,
    depth: u16,
    percentile: &'static str,
}

const CASES: [Case; 4] = [
    Case { disk: "memory", depth: 1, percentile: "p99_us" },
    Case { disk: "memory", depth: 1, percentile: "p50_us" },
    Case { disk: "file", depth: 8, percentile: "p99_us" },
    Case { disk: "file", depth: 8, percentile: "p50_us" },
];

impl Case {
    fn percentile(self) -> &'static str {
        self.percentile.trim_end_matches("_us")
    }

    fn id(self) -> String {
        format!("{}-4k-d{}-{}", self.disk, self.depth, self.percentile())
    }

    fn plan(self) -> CellPlan {
        let (disk, depth, percentile) = (self.disk, self.depth, self.percentile());
        let title = format!("{disk} disk, 4 KiB, depth {depth}, {percentile}");
        CellPlan { id: self.id(), title, systems: SYSTEMS.map(Into::into).into() }
    }

    fn comparison(self, control: bool) -> Comparison {
        let [hung, idle] = SYSTEMS.map(str::to_owned);
        // The bar applies only to the slow requests.
        let promised = self.percentile == "p99_us" && !control;
        let bar = promised.then_some(BAR);
        Comparison { cell: self.id(), ours: hung, peers: vec![idle], bar, ..Comparison::default() }
    }
}

impl Experiment for HungDisk {
    fn name(&self) -> &'static str {
        "hung-disk"
    }

    fn summary(&self) -> &'static str {
        "p99 of disks beside a disk on the same reactor whose storage hangs, and without it"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &&Case| options.selects(&case.id());
        let cases: Vec<_> = CASES.iter().filter(wanted).copied().collect();
        let plan = Plan {
            cells: cases.iter().map(|case| case.plan()).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 9 } else { 15 }),
            metric: METRIC.into(),
            comparisons: cases.iter().map(|case| case.comparison(options.control)).collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![format!(
                "One ringway-io, one reactor, on CPU {}; client on CPU {}, asleep on its eventfd. \
                 Hung: a block device over a frozen file system, with {EACH} writes, {EACH} reads \
                 and a flush. Ratios are of 1 / percentile: below 1, neighbours were slower.",
                placement.backend, placement.client
            )],
            ..Plan::default()
        };
        let scratch = options.scratch.clone().unwrap_or_else(|| "/var/tmp".into());
        let place = Place::start(placement, &scratch)?;
        Ok(Box::new(PreparedExperiment { plan, cases, placement, options: options.clone(), place }))
    }
}

/// The process with its disks.
struct Place {
    io: RingwayIo,
    worker: u32,
    /// Driver queue of the hung disk.
    guest: Queue,
    /// Dropped after the process, whose open device must have completed first.
    hanging: Hanging,
    _dirs: [TempDir; 2],
}

impl Place {
    fn start(placement: Placement, scratch: &Path) -> Result<Self> {
        let hanging = Hanging::new()?;
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let images = tempfile::Builder::new().prefix("ringway-lab-").tempdir_in(scratch);
        let images = images.with_context(|| format!("no images in {}", scratch.display()))?;
        let file = images.path().join("file.img");
        image::create(&file, DISK_BYTES)?;
        let start = || Ok(RingwayIo::start(dir.path(), &["--reactors", "1"])?);
        let io = cpu::started_on(placement.backend, start)?;
        io.attach("hung", &hanging.device("hung", HUNG_BYTES)?, &[])?;
        io.attach("file", &file, &[])?;
        let socket = format!("socket={}", io.socket("memory").display());
        let memory = format!("backend.memory={DISK_BYTES}");
        io.ringway(&["io", "disk.attach", "id=memory", &socket, &memory])?;
        client::fill(&io.socket("memory"))?;
        let options =
            driver::Options { queue_size: 256, slots: 2 * EACH + 1, ..driver::Options::default() };
        let guest = Driver::connect(&io.socket("hung"), &options)?.into_queue()?;
        let worker = io.process.worker_pid()?.context("ringway-io has no worker")?;
        Ok(Self { io, worker, guest, hanging, _dirs: [dir, images] })
    }

    /// Submits the requests that hang.
    fn load(&mut self) -> Result<()> {
        let offset = |slot: u16| u64::from(slot) * 4096;
        for slot in 0..EACH {
            self.guest.write(offset(slot), slot, 4096)?;
        }
        self.guest.kick()?;
        // Ensures that the device receives the writes before the reads.
        std::thread::sleep(SILENT);
        for slot in EACH..2 * EACH {
            self.guest.read(offset(slot), slot, 4096)?;
        }
        self.guest.flush(2 * EACH)?;
        Ok(self.guest.kick()?)
    }

    /// Checks that no request has completed.
    fn is_silent(&mut self) -> Result<()> {
        ensure!(!self.guest.has_completion(), "the storage does not hang: a request has ended");
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        for _ in 0..=2 * EACH {
            let (slot, result) = self.guest.finish_one()?;
            ensure!(result == 0, "request {slot} of the hung disk failed: {result}");
        }
        Ok(())
    }
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<Case>,
    placement: Placement,
    options: Options,
    place: Place,
}

impl PreparedExperiment {
    fn neighbour(&self, case: Case) -> Result<Sample> {
        let measure = Duration::from_millis(self.options.window_ms.unwrap_or(300));
        let window = Window { warm: measure / 4, measure };
        let (depth, wait) = (case.depth, Wait::Sleep);
        let load = Load { depth, wait, sample_every: 1, ..Load::default() };
        let time = || cpu::process_time_s(self.place.worker);
        let socket = self.place.io.socket(case.disk);
        let mut sample = client::measure(&socket, load, window, self.placement.client, time)?;
        match sample.get(case.percentile) {
            Some(us) if *us > 0.0 => sample.insert(METRIC.into(), 1e6 / us),
            _ => bail!("no latencies were recorded"),
        };
        Ok(sample)
    }
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        // A control run hangs no disk.
        let hangs = system == 0 && !self.options.control;
        if !hangs {
            self.place.load()?;
            self.place.finish()?;
            return self.neighbour(case);
        }
        self.place.hanging.hang()?;
        self.place.load()?;
        std::thread::sleep(SILENT);
        self.place.is_silent()?;
        let sample = self.neighbour(case);
        let silent = self.place.is_silent();
        self.place.hanging.answer()?;
        self.place.finish()?;
        silent?;
        sample
    }
}
