//! `golden-boot`: machines that read the same recorded boot from an image on a slow server.
//!
//! The server is a `ringway-io` that exports a disk over NBD. The disk is on a model of a storage with
//! a latency and a limit of bytes. Each machine reads the trace in its order, one request at a time.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::{Backend, RingwayIo, StorageDaemon, Target};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::{QSD, versions};

/// Bytes a second and latency of the server.
const RATE: u64 = 20_000_000;
const LATENCY: Duration = Duration::from_millis(5);
/// Size of the image, and bytes of a trace, with `--quick` and without.
const IMAGE_BYTES: u64 = 1 << 30;
const TRACE_BYTES: [u64; 2] = [1 << 20, u64::MAX];
/// Reads of a guest that booted Debian 12 with systemd from an ext4 disk of 1 GiB, up to its login:
/// first sector and sectors, as QEMU's trace event `virtio_blk_handle_read` reported them.
const TRACE: &str = include_str!("golden_boot/debian12.trace");
/// Machines that boot at once, with `--quick` and without.
const MACHINES: [&[usize]; 2] = [&[2], &[1, 8, 50]];
const SECTOR: u64 = 512;

const SYSTEMS: [&str; 5] = ["apart", "cold", "boot-set", "warm", "qsd"];

/// The `golden-boot` experiment.
#[derive(Debug)]
pub struct GoldenBoot;

fn cell_id(machines: usize) -> String {
    format!("{machines}-machines")
}

/// Returns the comparison of one cell: bytes from the server, with a cache over without.
fn comparison(machines: usize) -> Comparison {
    Comparison {
        cell: cell_id(machines),
        ours: "cold".into(),
        peers: vec!["apart".into()],
        metric: Some("fetched_mib".into()),
        figure: Figure::OverBest,
        side: Side::AtMost,
        ..Comparison::default()
    }
}

impl Experiment for GoldenBoot {
    fn name(&self) -> &'static str {
        "golden-boot"
    }

    fn summary(&self) -> &'static str {
        "machines that boot from a golden image on a slow server: bytes fetched, time of each"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let size = usize::from(!options.quick);
        let wanted = |machines: &usize| options.selects(&cell_id(*machines));
        let cells: Vec<usize> = MACHINES[size].iter().copied().filter(wanted).collect();
        let systems: Vec<String> = SYSTEMS.map(String::from).into();
        let trace = trace(TRACE_BYTES[size]);
        let plan = Plan {
            cells: cells
                .iter()
                .map(|machines| CellPlan {
                    id: cell_id(*machines),
                    title: format!("{machines} machines at once"),
                    systems: systems.clone(),
                })
                .collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "slowest_s".into(),
            comparisons: cells.iter().map(|machines| comparison(*machines)).collect(),
            versions: versions(&[QSD], Some("ringway-io"))?,
            notes: vec![
                format!(
                    "A server of {} MB/s with {LATENCY:?}; the {} reads with {} MiB of a boot of Debian \
                     12, the same for each machine.",
                    RATE / 1_000_000,
                    trace.len(),
                    trace.iter().map(|(_, len)| u64::from(*len)).sum::<u64>() >> 20
                ),
                "apart: each machine has a cache of its own. cold: all share an empty one. boot-set: \
                 the same, and the blocks of the first machine are known. warm: all blocks are in the \
                 cache file. qsd: a qemu-storage-daemon for each machine, which has no cache."
                    .into(),
            ],
            ..Plan::default()
        };
        Ok(Box::new(PreparedBoot { plan, cells, trace, scratch: options.scratch.clone() }))
    }
}

/// Returns the reads of a recorded boot by sector and length in bytes, up to this many bytes.
fn trace(bytes: u64) -> Vec<(u64, u32)> {
    let mut left = bytes;
    let read = |line: &str| {
        let (sector, sectors) = line.split_once(' ')?;
        let len = sectors.parse::<u32>().ok()? * SECTOR as u32;
        Some((sector.parse().ok()?, len))
    };
    let fits = |(_, len): &(u64, u32)| {
        let fits = left > 0;
        left = left.saturating_sub(u64::from(*len));
        fits
    };
    TRACE.lines().filter_map(read).take_while(fits).collect()
}

struct PreparedBoot {
    plan: Plan,
    cells: Vec<usize>,
    trace: Vec<(u64, u32)>,
    scratch: Option<std::path::PathBuf>,
}

/// Server of the image.
struct Store {
    io: RingwayIo,
    address: String,
    _dir: TempDir,
}

impl Store {
    fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let io = RingwayIo::start(dir.path(), &[])?;
        let pipe = json!({"bytes_per_second": RATE, "latency_ns": LATENCY.as_nanos() as u64});
        let model = json!({"name": "store", "size": IMAGE_BYTES, "device": {"pipe": pipe}});
        io.attach_target("gold", &Target::Tree(json!({ "model": model })), &[])?;
        let socket = dir.path().join("gold.nbd");
        let export = json!({"id": "gold", "socket": socket, "read_only": true});
        io.ringway(&["io", "disk.export", &export.to_string()])?;
        let address = format!("nbd+unix:///gold?socket={}", socket.display());
        Ok(Self { io, address, _dir: dir })
    }

    /// Returns the bytes that it has served.
    fn bytes(&self) -> Result<u64> {
        let stats: Value = serde_json::from_str(&self.io.ringway(&["io", "stats"])?)?;
        stats["disks"][0]["exports"][0]["read_bytes"]
            .as_u64()
            .context("no statistics of the export")
    }
}

/// Attaches a disk of a machine on the image, with a cache directory.
fn attach(host: &RingwayIo, store: &Store, id: &str, cache: &Path) -> Result<()> {
    let golden = json!({"source": {"nbd": store.address}, "cache": cache});
    let target = Target::Tree(json!({ "golden": golden }));
    Ok(host.attach_target(id, &target, &["read_only=true"])?)
}

impl PreparedBoot {
    /// Reads the trace. Returns the seconds that it took.
    fn boot(&self, socket: &Path) -> Result<f64> {
        let mut guest = Guest::start(socket, &Setup::default())?;
        let began = Instant::now();
        for (sector, len) in &self.trace {
            let done = guest.run(0, &Request::read(*sector, *len))?;
            ensure!(done.status == status::OK, "a read failed at sector {sector}");
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Boots machines at once. Returns the seconds of each.
    fn boot_all(&self, sockets: &[std::path::PathBuf]) -> Result<Vec<f64>> {
        std::thread::scope(|scope| {
            let boots: Vec<_> =
                sockets.iter().map(|socket| scope.spawn(|| self.boot(socket))).collect();
            let joined = boots.into_iter().map(|boot| boot.join());
            joined.map(|boot| boot.map_err(|_| anyhow!("a machine panicked"))?).collect()
        })
    }

    /// Fills the cache of a host by one machine. Returns the boot set.
    fn fill(&self, store: &Store, dir: &Path, cache: &Path) -> Result<String> {
        let host = RingwayIo::start(dir, &[])?;
        attach(&host, store, "first", cache)?;
        self.boot(&host.socket("first"))?;
        Ok(host.ringway(&["io", "golden.export_boot_set", "image=first"])?)
    }

    fn measure_ringway(&self, store: &Store, system: &str, machines: usize) -> Result<Sample> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("ringway-lab-");
        let dir = match &self.scratch {
            Some(scratch) => builder.tempdir_in(scratch)?,
            None => builder.tempdir()?,
        };
        let (cache, former) = (dir.path().join("cache"), dir.path().join("former"));
        let known = match system {
            "warm" => Some(self.fill(store, dir.path(), &cache)?),
            "boot-set" => Some(self.fill(store, dir.path(), &former)?),
            _ => None,
        };
        let before = store.bytes()?;
        let host = RingwayIo::start(dir.path(), &[])?;
        if let Some(set) = known.filter(|_| system == "boot-set") {
            let set: Value = serde_json::from_str(&set)?;
            let import = json!({"cache": cache, "boot_set": set});
            host.ringway(&["io", "golden.import_boot_set", &import.to_string()])?;
        }
        let mut sockets = Vec::new();
        for number in 0..machines {
            let id = format!("d{number}");
            let own = dir.path().join(&id);
            attach(&host, store, &id, if system == "apart" { &own } else { &cache })?;
            sockets.push(host.socket(&id));
        }
        self.sample(store, before, &sockets)
    }

    fn measure_daemons(&self, store: &Store, machines: usize) -> Result<Sample> {
        let before = store.bytes()?;
        let target = Target::Tree(json!({"nbd": store.address}));
        let options = StorageDaemon { read_only: true, ..StorageDaemon::new(target) };
        let start = |_| Ok(Backend::storage_daemon(&options)?);
        let daemons: Vec<Backend> = (0..machines).map(start).collect::<Result<_>>()?;
        let sockets: Vec<_> = daemons.iter().map(|daemon| daemon.socket().to_owned()).collect();
        self.sample(store, before, &sockets)
    }

    fn sample(&self, store: &Store, before: u64, sockets: &[std::path::PathBuf]) -> Result<Sample> {
        let seconds = self.boot_all(sockets)?;
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        let fetched = (store.bytes()? - before) as f64 / f64::from(1 << 20);
        let figures = [("slowest_s", slowest), ("mean_s", mean), ("fetched_mib", fetched)];
        Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

impl Prepared for PreparedBoot {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let store = Store::start()?;
        let machines = self.cells[cell];
        match SYSTEMS[system] {
            "qsd" => self.measure_daemons(&store, machines),
            system => self.measure_ringway(&store, system, machines),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_was_recorded_whole() {
        let all = trace(u64::MAX);
        assert_eq!(all.len(), TRACE.lines().count());
        let end = |(sector, len): &(u64, u32)| sector * SECTOR + u64::from(*len);
        assert!(all.iter().all(|read| end(read) <= IMAGE_BYTES && read.1 > 0));
        assert!(trace(1 << 20).iter().map(|(_, len)| u64::from(*len)).sum::<u64>() >= 1 << 20);
        assert!(trace(1 << 20).len() < all.len());
    }
}
