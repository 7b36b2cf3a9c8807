//! `golden-boot`: machines that read the same recorded boot from an image on a slow server.
//!
//! The server is a `ringway-io` that exports a disk over NBD. The disk is on a model of a storage with
//! a latency and a limit of bytes. Each machine reads the trace in its order, one request at a time.

mod machines;
mod store;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};
use testkit::process::{Backend, RingwayIo, StorageDaemon, Target};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

use machines::{Machines, SYSTEMS};
use store::{LATENCY, RATE, Store};

use crate::experiment::{Experiment, Options, Plan, Prepared, Sample};
use crate::host::{QSD, versions};
use crate::stats::percentile;

/// Bytes of a trace, with `--quick` and without.
const TRACE_BYTES: [u64; 2] = [1 << 20, u64::MAX];
/// Reads of a guest that booted Debian 12 with systemd from an ext4 disk of 1 GiB, up to its login:
/// first sector and sectors, as QEMU's trace event `virtio_blk_handle_read` reported them.
const TRACE: &str = include_str!("golden_boot/debian12.trace");
/// Number of boots whose median counts, at the second machine and at the last.
const BOOTS: usize = 5;
const SECTOR: u64 = 512;

/// The `golden-boot` experiment.
#[derive(Debug)]
pub struct GoldenBoot;

impl Experiment for GoldenBoot {
    fn name(&self) -> &'static str {
        "golden-boot"
    }

    fn summary(&self) -> &'static str {
        "machines that boot from a golden image on a slow server: bytes fetched, time of each"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let wanted = |machines: &Machines| options.selects(&machines.cell().id);
        let cells: Vec<Machines> = Machines::all(options.quick).filter(wanted).collect();
        let trace = trace(TRACE_BYTES[usize::from(!options.quick)]);
        let plan = Plan {
            cells: cells.iter().map(|machines| machines.cell()).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "slowest_s".into(),
            comparisons: cells.iter().flat_map(|machines| machines.comparisons()).collect(),
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
                format!(
                    "last_over_second: where machines boot one after the other, the median time of \
                     the last {BOOTS} over that of {BOOTS} from the second on."
                ),
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
    cells: Vec<Machines>,
    trace: Vec<(u64, u32)>,
    scratch: Option<std::path::PathBuf>,
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

    /// Boots all machines. Returns the seconds of each, in the order of the machines.
    fn boot_all(&self, sockets: &[std::path::PathBuf], in_turn: bool) -> Result<Vec<f64>> {
        if in_turn {
            return sockets.iter().map(|socket| self.boot(socket)).collect();
        }
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

    fn measure_ringway(&self, store: &Store, system: &str, machines: Machines) -> Result<Sample> {
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
        for number in 0..machines.count {
            let id = format!("d{number}");
            let own = dir.path().join(&id);
            attach(&host, store, &id, if system == "apart" { &own } else { &cache })?;
            sockets.push(host.socket(&id));
        }
        self.sample(store, before, &sockets, machines.in_turn)
    }

    fn measure_daemons(&self, store: &Store, machines: Machines) -> Result<Sample> {
        let before = store.bytes()?;
        let target = Target::Tree(json!({"nbd": store.address}));
        let options = StorageDaemon { read_only: true, ..StorageDaemon::new(target) };
        let start = |_| Ok(Backend::storage_daemon(&options)?);
        let daemons: Vec<Backend> = (0..machines.count).map(start).collect::<Result<_>>()?;
        let sockets: Vec<_> = daemons.iter().map(|daemon| daemon.socket().to_owned()).collect();
        self.sample(store, before, &sockets, machines.in_turn)
    }

    fn sample(
        &self,
        store: &Store,
        before: u64,
        sockets: &[std::path::PathBuf],
        in_turn: bool,
    ) -> Result<Sample> {
        let seconds = self.boot_all(sockets, in_turn)?;
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        let fetched = (store.bytes()? - before) as f64 / f64::from(1 << 20);
        let mut figures = vec![("slowest_s", slowest), ("mean_s", mean), ("fetched_mib", fetched)];
        if in_turn {
            let of = |from: usize| percentile(&mut seconds[from..from + BOOTS].to_vec(), 50);
            figures.push(("last_over_second", of(seconds.len() - BOOTS) / of(1)));
        }
        Ok(figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
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
    use super::store::IMAGE_BYTES;
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
