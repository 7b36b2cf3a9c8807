//! `write-cache`: 4 KiB writes to each kind of write cache, and to storage without one.
//!
//! All blocks of a disk are written before a sample, so that each kind is in its steady state. Each
//! system has a `ringway-io` of its own with one reactor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testkit::process::{RingwayIo, Target};

use crate::blk::client::{self, Access, Load, Wait, Window};
use crate::blk::image::{self, DISK_BYTES};
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample, Side};
use crate::host::versions;

/// Least rate of a cache in memory over the memory disk.
const OVER_MEMORY: f64 = 0.7;
/// Least rate of a persistent cache over direct writes.
const OVER_DIRECT: f64 = 0.9;
/// Least rate of a cache in memory over a disk of 150 requests a second.
const OVER_SLOW: f64 = 200.0;
/// Time of a request on that disk, in nanoseconds.
const SLOW_NS: u64 = 1_000_000_000 / 150;

/// Cells: requests in flight.
const DEPTHS: [u16; 2] = [1, 32];

/// Storage of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Memory disk.
    Memory,
    /// Overlay with as much memory as the disk has.
    Ram,
    /// Overlay with a quarter of that.
    Exceeded,
    /// qcow2 image over the same base.
    Persistent,
    /// The host's page cache.
    Writeback,
    /// Raw file by direct I/O.
    Direct,
    /// Model of a disk of 150 requests a second.
    Slow,
}

const KINDS: [Kind; 7] = [
    Kind::Memory,
    Kind::Ram,
    Kind::Exceeded,
    Kind::Persistent,
    Kind::Writeback,
    Kind::Direct,
    Kind::Slow,
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory disk",
            Self::Ram => "cache in ram",
            Self::Exceeded => "cache in a quarter of the ram",
            Self::Persistent => "persistent cache",
            Self::Writeback => "writeback cache",
            Self::Direct => "disk without a cache",
            Self::Slow => "disk of 150 IOPS",
        }
    }

    /// Returns the backend, with its files in `dir`.
    fn backend(self, dir: &Path) -> Value {
        let base = json!({"file": dir.join("base.img")});
        let overlay = |ram| {
            let overflow = dir.join("overflow");
            json!({"overlay": {"base": base.clone(), "ram": ram, "overflow": overflow}})
        };
        match self {
            Self::Memory => json!({"memory": DISK_BYTES}),
            // The cleaner keeps a quarter of the memory free.
            Self::Ram => overlay(DISK_BYTES * 2),
            Self::Exceeded => overlay(DISK_BYTES / 4),
            Self::Persistent => json!({"qcow2": {"file": dir.join("top.qcow2"), "backing": base}}),
            Self::Writeback | Self::Direct => base,
            Self::Slow => {
                let device = json!({"pipe": {"request_ns": SLOW_NS, "latency_ns": 0}});
                json!({"model": {"name": "slow", "size": DISK_BYTES, "device": device,
                                 "profile": false}})
            }
        }
    }
}

/// The `write-cache` experiment.
#[derive(Debug)]
pub struct WriteCache;

fn comparisons(cell: &str, depth: u16) -> Vec<Comparison> {
    let of = |ours: Kind, peer: Kind, bar: Option<f64>| Comparison {
        cell: cell.to_owned(),
        ours: ours.name().to_owned(),
        peers: vec![peer.name().to_owned()],
        side: Side::AtLeast,
        bar: bar.filter(|_| depth == 1),
        ..Comparison::default()
    };
    vec![
        of(Kind::Ram, Kind::Memory, Some(OVER_MEMORY)),
        of(Kind::Persistent, Kind::Direct, Some(OVER_DIRECT)),
        of(Kind::Ram, Kind::Slow, Some(OVER_SLOW)),
        of(Kind::Ram, Kind::Direct, None),
        of(Kind::Exceeded, Kind::Direct, None),
        of(Kind::Writeback, Kind::Direct, None),
    ]
}

impl Experiment for WriteCache {
    fn name(&self) -> &'static str {
        "write-cache"
    }

    fn summary(&self) -> &'static str {
        "4 KiB random writes to caches in memory, persistent ones, and storage without one"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let id = |depth: &u16| format!("write-4k-d{depth}");
        let depths: Vec<u16> =
            DEPTHS.into_iter().filter(|depth| options.selects(&id(depth))).collect();
        let plan = Plan {
            cells: depths
                .iter()
                .map(|depth| CellPlan {
                    id: id(depth),
                    title: format!("random writes of 4 KiB, depth {depth}, polling client"),
                    systems: KINDS.map(|kind| kind.name().to_owned()).into(),
                })
                .collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 7 }),
            metric: "iops".into(),
            comparisons: depths.iter().flat_map(|depth| comparisons(&id(depth), *depth)).collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![format!(
                "Disks of {} MiB, whose blocks were all written before. One ringway-io for each \
                 sample, one reactor, on CPU {}; the client on CPU {} never flushes. A crash of the \
                 host loses: caches in ram, all; writeback, what was not flushed; the others, \
                 nothing but the memory disk and the model, which are in memory.",
                DISK_BYTES >> 20,
                placement.backend,
                placement.client
            )],
            ..Plan::default()
        };
        let window = Duration::from_millis(options.window_ms.unwrap_or(500));
        let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
        Ok(Box::new(PreparedExperiment { plan, depths, placement, window, scratch }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    depths: Vec<u16>,
    placement: Placement,
    window: Duration,
    scratch: PathBuf,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (kind, depth) = (KINDS[system], self.depths[cell]);
        let files = image::dir_in(&self.scratch)?;
        image::create(&files.path().join("base.img"), DISK_BYTES)?;
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let start = || Ok(RingwayIo::start(dir.path(), &["--reactors", "1"])?);
        let io = cpu::started_on(self.placement.backend, start)?;
        if kind == Kind::Persistent {
            let path = format!("path={}", files.path().join("top.qcow2").display());
            let size = format!("size={DISK_BYTES}");
            let base = json!({"file": files.path().join("base.img"), "format": "raw"});
            let backing = format!("backing={base}");
            io.ringway(&["io", "image.create", &path, "format=qcow2", &size, &backing])?;
        }
        let cache = if kind == Kind::Writeback { "cache=writeback" } else { "cache=none" };
        io.attach_target("disk", &Target::Tree(kind.backend(files.path())), &[cache])?;
        // The model needs minutes for all of its blocks, and is the same without them.
        if kind != Kind::Slow {
            client::fill(&io.socket("disk"))?;
        }
        let worker = io.process.worker_pid()?.context("ringway-io has no worker")?;
        let load = Load {
            access: Access::Write,
            depth,
            wait: Wait::Poll,
            sample_every: 1,
            ..Load::default()
        };
        let window = Window { warm: self.window / 4, measure: self.window };
        let time = || cpu::process_time_s(worker);
        client::measure(&io.socket("disk"), load, window, self.placement.client, time)
    }
}
