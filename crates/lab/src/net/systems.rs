//! Switches of the network experiments: how to start them, and their names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;
use testkit::process::{RingwayNet, find_binary, find_tool};
use testkit::testpmd::{Testpmd, allow_huge_pages};

use super::ovs::{self, Ovs};
use crate::blk::systems::Poll;
use crate::cpu::{self, Placement};
use crate::host::version_of;

/// Memory of a testpmd in MiB.
const MEMORY_MIB: u64 = 512;
/// Buffers of a testpmd, more than all rings hold.
const BUFFERS: u32 = 32_768;

/// Switch of a network experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// `ringway-net`.
    Ringway(Poll),
    /// testpmd, which forwards all frames from one socket to another. It spins.
    Testpmd,
    /// testpmd that accepts TCP frames for segmentation.
    TestpmdWhole,
    /// Open vSwitch with DPDK, as a learning switch.
    Ovs {
        /// True if its idle thread sleeps.
        sleeps: bool,
    },
}

impl System {
    /// Returns the name for tables.
    pub(super) fn name(self) -> String {
        match self {
            Self::Ringway(poll) => format!("ringway-net --poll {}", poll.word()),
            Self::Testpmd => "testpmd".to_owned(),
            Self::TestpmdWhole => "testpmd, TSO".to_owned(),
            Self::Ovs { sleeps: false } => "ovs-dpdk".to_owned(),
            Self::Ovs { sleeps: true } => "ovs-dpdk pmd-maxsleep".to_owned(),
        }
    }

    /// Returns whether the switch is ours.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Ringway(_))
    }

    /// Returns the systems by name. In a control run, peers take the place of ours.
    pub(super) fn named(systems: &[Self], control: bool) -> Vec<(String, Self)> {
        let named = |system: &Self| {
            if control && system.is_ours() {
                let stand_in = Self::Testpmd;
                (format!("{} in the place of {}", stand_in.name(), system.name()), stand_in)
            } else {
                (system.name(), *system)
            }
        };
        systems.iter().map(named).collect()
    }

    /// Returns the version of the switch.
    ///
    /// # Errors
    /// A program is missing. The error names the remedy.
    pub(super) fn version(self) -> Result<(String, String)> {
        Ok(match self {
            Self::Ringway(_) => {
                ("ringway-net".to_owned(), version_of(&find_binary("ringway-net")?))
            }
            Self::Testpmd | Self::TestpmdWhole => ("testpmd".to_owned(), dpdk_version()?),
            Self::Ovs { .. } => ("ovs-dpdk".to_owned(), ovs::version()?),
        })
    }

    /// Starts the switch on the backend's CPU with this number of ports and queue pairs per port.
    /// Ours has one reactor.
    ///
    /// # Errors
    /// The switch does not start.
    pub(super) fn start(self, ports: usize, pairs: u16, at: Placement) -> Result<Running> {
        self.run(ports, pairs, at, Some(at.backend))
    }

    /// Starts the switch without CPU affinity, unless it requires a CPU.
    ///
    /// # Errors
    /// The switch does not start.
    pub(super) fn start_anywhere(self, ports: usize, pairs: u16, at: Placement) -> Result<Running> {
        self.run(ports, pairs, at, None)
    }

    /// Starts ours with one port and an uplink to a TAP device of this name, on the backend's CPU.
    ///
    /// # Errors
    /// The switch does not start.
    pub(super) fn uplink(poll: Poll, device: &str, at: Placement) -> Result<Running> {
        let dir = tempfile::Builder::new().prefix("rwlab-").tempdir()?;
        let sockets = [socket(dir.path(), 0)];
        let options = ["--poll", poll.word(), "--reactors", "1", "--tap", device];
        let start = || Ok(RingwayNet::start(&sockets, &options)?);
        let process = Kind::Ringway(cpu::started_on(at.backend, start)?);
        Ok(Running { process, dir })
    }

    fn run(self, ports: usize, pairs: u16, at: Placement, cpu: Option<usize>) -> Result<Running> {
        let dir = tempfile::Builder::new().prefix("rwlab-").tempdir()?;
        let process = match self {
            Self::Ringway(poll) => Kind::Ringway(ringway(dir.path(), ports, pairs, poll, cpu)?),
            Self::Testpmd | Self::TestpmdWhole => {
                let whole = self == Self::TestpmdWhole;
                Kind::Testpmd(testpmd(dir.path(), ports, pairs, whole, at.backend)?)
            }
            Self::Ovs { sleeps } => Kind::Ovs(Ovs::start(dir.path(), ports, at, sleeps)?),
        };
        Ok(Running { process, dir })
    }
}

/// Returns the versions of several switches.
pub(super) fn versions(
    systems: &[System],
    control: bool,
) -> Result<std::collections::BTreeMap<String, String>> {
    let used = System::named(systems, control);
    used.into_iter().map(|(_, system)| system.version()).collect()
}

/// DPDK prints its version before its usage.
fn dpdk_version() -> Result<String> {
    let mut command = Command::new(find_tool("dpdk-testpmd", "dpdk-dev")?);
    let words = ["-v", "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "--", "--help"];
    let output = command.args(words).output().context("cannot run dpdk-testpmd")?;
    let output = [output.stdout, output.stderr].concat();
    let output = String::from_utf8_lossy(&output).into_owned();
    let version = output.split_once("RTE Version: '").and_then(|(_, rest)| rest.split_once('\''));
    Ok(version.map_or_else(|| "unknown".to_owned(), |(version, _)| version.to_owned()))
}

/// Running switch. Dropping it ends it.
pub(super) struct Running {
    process: Kind,
    dir: TempDir,
}

enum Kind {
    Ringway(RingwayNet),
    Testpmd(Testpmd),
    Ovs(Ovs),
}

impl Running {
    /// Returns the socket of a port.
    pub(super) fn socket(&self, port: usize) -> PathBuf {
        match &self.process {
            Kind::Ovs(ovs) => ovs.socket(port),
            Kind::Ringway(_) | Kind::Testpmd(_) => socket(self.dir.path(), port),
        }
    }

    /// Returns the id of the process whose CPU time counts.
    pub(super) fn id(&self) -> u32 {
        match &self.process {
            Kind::Ringway(ringway) => ringway.process.id(),
            Kind::Testpmd(testpmd) => testpmd.id(),
            Kind::Ovs(ovs) => ovs.id(),
        }
    }

    /// Returns the switch's CPU time in seconds.
    ///
    /// # Errors
    /// The switch has ended.
    pub(super) fn time_s(&self) -> Result<f64> {
        cpu::process_time_s(self.id())
    }
}

fn socket(dir: &Path, port: usize) -> PathBuf {
    dir.join(format!("{port}.sock"))
}

fn ringway(
    dir: &Path,
    ports: usize,
    pairs: u16,
    poll: Poll,
    cpu: Option<usize>,
) -> Result<RingwayNet> {
    let sockets: Vec<_> = (0..ports).map(|port| socket(dir, port)).collect();
    let pairs = pairs.to_string();
    let mut options = vec!["--queues", &pairs, "--poll", poll.word()];
    let Some(cpu) = cpu else { return Ok(RingwayNet::start(&sockets, &options)?) };
    options.extend(["--reactors", "1"]);
    cpu::started_on(cpu, || Ok(RingwayNet::start(&sockets, &options)?))
}

/// Starts testpmd. Its ports form pairs: the first forwards to the second, and so on.
fn testpmd(dir: &Path, ports: usize, pairs: u16, whole: bool, cpu: usize) -> Result<Testpmd> {
    allow_huge_pages(2 * MEMORY_MIB + 512)?;
    let mut environment: Vec<String> =
        ["--in-memory", "-m"].into_iter().map(str::to_owned).collect();
    environment.push(MEMORY_MIB.to_string());
    let whole = if whole { ",tso=1,legacy-ol-flags=1" } else { "" };
    environment.extend((0..ports).map(|port| {
        let path = socket(dir, port);
        format!("--vdev=net_vhost{port},iface={},queues={pairs}{whole}", path.display())
    }));
    let own = [
        "--forward-mode=io".to_owned(),
        "--rxd=1024".to_owned(),
        "--txd=1024".to_owned(),
        format!("--rxq={pairs}"),
        format!("--txq={pairs}"),
        format!("--total-num-mbufs={BUFFERS}"),
    ];
    let mut testpmd = Testpmd::start(Some(cpu), &environment, &own)?;
    testpmd.command("start")?;
    Ok(testpmd)
}
