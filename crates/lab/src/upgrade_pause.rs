//! `upgrade-pause`: pause of clients while `ringway-io` is upgraded under load.
//!
//! A client is never idle: a disk's client reads, writes and compares, two NICs ping each other.
//! Meanwhile a new process takes over from the old one, again and again. A pause is the longest
//! request, or the longest round trip, from shortly before to shortly after an upgrade. Nothing may
//! fail, no frame may be lost, and no client may have to reconnect.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use tempfile::TempDir;
use testkit::process::{RingwayIo, Target};
use testkit::raw::{Guest, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

use crate::blk::fleet::raise_open_files;
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;
use crate::net::{PingPair, Waits};
use crate::stats::pause_metrics;

/// Bars for the 99th percentile of the pauses, in milliseconds: with few devices, and with 200 NICs.
const P99_MS: f64 = 200.0;
const P99_MANY_MS: f64 = 400.0;
/// Upgrades per sample, and with `--quick`.
const UPGRADES: usize = 50;
const UPGRADES_QUICK: usize = 3;
/// Time of load after each upgrade, and between checks whether it has ended.
const SLICE: Duration = Duration::from_millis(20);
/// Size of the disk, in bytes.
const BYTES: u64 = 16 << 20;
const QUEUES: u16 = 4;
const DEPTH: u16 = 64;
/// Bytes of a ping between NICs.
const FRAME_BYTES: usize = 64;
/// Limit of open files that the clients of all NICs, and `ringway-io`, need.
const OPEN_FILES: u64 = 8192;

const SYSTEM: &str = "ringway-io";

/// The `upgrade-pause` experiment.
#[derive(Debug)]
pub struct UpgradePause;

/// Devices of the process that is upgraded.
#[derive(Clone, Copy, Debug)]
enum Devices {
    /// One disk, under load.
    Disk,
    /// This number of NICs. Two ping each other, the others are connected.
    Nics(u8),
}

const ALL: [Devices; 3] = [Devices::Disk, Devices::Nics(2), Devices::Nics(200)];

impl Devices {
    fn cell(self) -> String {
        match self {
            Self::Disk => "disk".to_owned(),
            Self::Nics(count) => format!("{count}-nics"),
        }
    }

    fn plan(self) -> CellPlan {
        let title = match self {
            Self::Disk => format!("memory disk, {QUEUES} queues of {DEPTH} requests"),
            Self::Nics(count) => format!("{count} NICs, of which two ping each other"),
        };
        CellPlan { id: self.cell(), title, systems: vec![SYSTEM.to_owned()] }
    }

    fn comparison(self) -> Comparison {
        Comparison {
            cell: self.cell(),
            ours: SYSTEM.to_owned(),
            figure: Figure::Alone,
            side: Side::AtMost,
            bar: Some(if matches!(self, Self::Nics(200)) { P99_MANY_MS } else { P99_MS }),
            ..Comparison::default()
        }
    }
}

impl Experiment for UpgradePause {
    fn name(&self) -> &'static str {
        "upgrade-pause"
    }

    fn summary(&self) -> &'static str {
        "pause of clients while another ringway-io takes over their devices"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let wanted = |one: &Devices| options.selects(&one.cell());
        let cells: Vec<_> = ALL.into_iter().filter(wanted).collect();
        let upgrades = if options.quick { UPGRADES_QUICK } else { UPGRADES };
        let plan = Plan {
            cells: cells.iter().map(|devices| devices.plan()).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "p99_ms".to_owned(),
            comparisons: cells.iter().map(|devices| devices.comparison()).collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![format!(
                "{upgrades} upgrades a sample, each by `ringway io upgrade`, to the same program."
            )],
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment { plan, cells, upgrades }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cells: Vec<Devices>,
    upgrades: usize,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, _: usize) -> Result<Sample> {
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let pauses = match self.cells[cell] {
            Devices::Disk => disk_pauses(&dir, self.upgrades)?,
            Devices::Nics(count) => nic_pauses(&dir, self.upgrades, count)?,
        };
        Ok(pause_metrics(&pauses).into())
    }
}

fn disk_pauses(dir: &TempDir, upgrades: usize) -> Result<Vec<Duration>> {
    let io = RingwayIo::start(dir.path(), &[])?;
    io.attach_target("d", &Target::Memory(BYTES), &[&format!("queues={QUEUES}")])?;
    let shape = Shape { queues: QUEUES, depth: DEPTH, ..Shape::default() };
    let mut client = ReconnectingGuest::connect(&io.socket("d"), shape)?;
    let mut work = || {
        let end = client.run(Instant::now() + SLICE)?;
        ensure!(end == End::Time, "the upgrade ended the connection of the disk's client");
        Ok(client.take_longest_request())
    };
    let pauses = (0..upgrades).map(|_| upgrade_during(&io, &mut work)).collect::<Result<_>>()?;
    client.finish()?;
    Ok(pauses)
}

fn nic_pauses(dir: &TempDir, upgrades: usize, count: u8) -> Result<Vec<Duration>> {
    raise_open_files(OPEN_FILES);
    let io = RingwayIo::start(dir.path(), &["--reactors", "2"])?;
    let sockets: Vec<_> = (0..count).map(|number| io.socket(&format!("n{number}"))).collect();
    for (number, socket) in sockets.iter().enumerate() {
        io.ringway(&[
            "io",
            "nic.attach",
            &format!("id=n{number}"),
            &format!("socket={}", socket.display()),
            "network=lan",
            &format!("mac=02:00:00:00:01:{number:02x}"),
        ])?;
    }
    let mut pair = PingPair::connect([&sockets[0], &sockets[1]], FRAME_BYTES)?;
    let setup = || Setup { queues: 2, memory_bytes: 1 << 20, ..Setup::default() };
    let others: Result<Vec<_>, _> =
        sockets[2..].iter().map(|socket| Guest::start(socket, &setup())).collect();
    let others = others?;
    let mut work = || Ok(Duration::from_nanos(pair.ping(Waits::Asleep, SLICE)?.max()));
    let pauses = (0..upgrades).map(|_| upgrade_during(&io, &mut work)).collect();
    drop(others);
    pauses
}

/// Upgrades the process while `work` runs again and again, and once more afterwards. Returns the
/// longest pause of all.
fn upgrade_during(io: &RingwayIo, work: &mut dyn FnMut() -> Result<Duration>) -> Result<Duration> {
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| io.ringway(&["io", "upgrade"]));
        let mut longest = Duration::ZERO;
        while !upgrade.is_finished() {
            longest = longest.max(work()?);
        }
        upgrade.join().map_err(|_| anyhow!("the caller of the upgrade panicked"))??;
        Ok(longest.max(work()?))
    })
}
