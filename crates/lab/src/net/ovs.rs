//! Open vSwitch with DPDK in separate directories: a learning switch between vhost-user sockets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use testkit::peers;
use testkit::process::{PROCESS_DEADLINE, Process};
use testkit::testpmd::allow_huge_pages;

use crate::cpu::Placement;

/// Program with the DPDK datapath. The plain name may be an alternative without it.
const SWITCH: &str = "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "usr/share/openvswitch/vswitch.ovsschema";
const DATABASE: &str = "usr/sbin/ovsdb-server";
const DATABASE_TOOL: &str = "usr/bin/ovsdb-tool";
const CONFIGURE: &str = "usr/bin/ovs-vsctl";
const CONTROL: &str = "usr/bin/ovs-appctl";
/// Name of the bridge, which the host sees as a device while the switch runs.
const BRIDGE: &str = "rwlab-ovs0";
/// Timeout of Open vSwitch's tools in seconds.
const PATIENCE_S: &str = "--timeout=20";
/// Memory in MiB.
const MEMORY_MIB: u64 = 512;
/// Longest sleep in microseconds of an idle polling thread.
const SLEEP_US: u32 = 500;

/// Running Open vSwitch.
pub(super) struct Ovs {
    switch: Process,
    _database: Process,
    place: Place,
}

/// Directories of its programs and of its run.
struct Place {
    root: PathBuf,
    dir: PathBuf,
}

/// Returns the version. Fails if Open vSwitch is missing and cannot be installed.
pub(super) fn version() -> Result<String> {
    let output = run(Command::new(peers::open_vswitch()?.join(SWITCH)).arg("--version"))?;
    Ok(output.lines().collect::<Vec<_>>().join(", "))
}

impl Ovs {
    /// Starts Open vSwitch in `dir`, with a port for each socket. Its thread polls on the backend's
    /// CPU, with or without sleeps.
    pub(super) fn start(
        dir: &Path,
        ports: usize,
        placement: Placement,
        sleeps: bool,
    ) -> Result<Self> {
        allow_huge_pages(2 * MEMORY_MIB + 512)?;
        let place = Place { root: peers::open_vswitch()?, dir: dir.to_owned() };
        let database = dir.join("conf.db");
        let schema = place.root.join(SCHEMA);
        run(place.command(DATABASE_TOOL).arg("create").arg(&database).arg(schema))?;
        let mut command = place.command(DATABASE);
        command.arg(&database).arg(format!("--remote=punix:{}/db.sock", dir.display()));
        let _database = process(&mut command)?;
        place.configure(&["--retry", "--no-wait", "init"])?;
        let mask = |cpu: usize| format!("{:#x}", 1u64 << cpu.min(63));
        let mut settings = vec![
            "dpdk-init=true".to_owned(),
            "dpdk-extra=--no-pci --in-memory --no-telemetry".to_owned(),
            format!("dpdk-socket-mem={MEMORY_MIB}"),
            format!("pmd-cpu-mask={}", mask(placement.backend)),
            format!("dpdk-lcore-mask={}", mask(placement.client)),
        ];
        if sleeps {
            settings.push(format!("pmd-maxsleep={SLEEP_US}"));
        }
        let settings: Vec<_> = settings
            .iter()
            .filter_map(|setting| setting.split_once('='))
            .map(|(name, value)| format!("other_config:{name}=\"{value}\""))
            .collect();
        let mut words = vec!["--no-wait", "set", "Open_vSwitch", "."];
        words.extend(settings.iter().map(String::as_str));
        place.configure(&words)?;
        let mut command = place.command(SWITCH);
        command.arg(format!("unix:{}/db.sock", dir.display()));
        command.arg(format!("--unixctl={}", place.control().display()));
        let switch = process(&mut command)?;
        let mut ovs = Self { switch, _database, place };
        match ovs.add_ports(ports) {
            Ok(()) => Ok(ovs),
            Err(error) => Err(ovs.switch.error(format!("takes no ports: {error:#}")).into()),
        }
    }

    fn add_ports(&self, ports: usize) -> Result<()> {
        let place = &self.place;
        place.configure(&[
            "add-br",
            BRIDGE,
            "--",
            "set",
            "bridge",
            BRIDGE,
            "datapath_type=netdev",
        ])?;
        for port in 0..ports {
            let name = name(port);
            let set = ["--", "set", "Interface", &name, "type=dpdkvhostuser"];
            place.configure(&[&["add-port", BRIDGE, &name][..], &set].concat())?;
            self.check(port)?;
        }
        Ok(())
    }

    /// Fails if a configured port does not exist. Open vSwitch reports the reason nowhere else.
    fn check(&self, port: usize) -> Result<()> {
        if self.socket(port).exists() {
            return Ok(());
        }
        let name = name(port);
        let error = self.place.configure(&["get", "Interface", &name, "error"])?;
        bail!("port {name} has no socket; Open vSwitch says: {}", error.trim_end());
    }

    /// Returns the socket of a port.
    pub(super) fn socket(&self, port: usize) -> PathBuf {
        self.place.dir.join(name(port))
    }

    /// Returns the id of the process whose CPU time counts.
    pub(super) fn id(&self) -> u32 {
        self.switch.id()
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        // A clean exit removes its devices from the host. Otherwise the next run removes them.
        let mut command = self.place.command(CONTROL);
        command.arg("-t").arg(self.place.control()).args([PATIENCE_S, "exit", "--cleanup"]);
        if run(&mut command).is_err() {
            let _ = self.switch.signal(Signal::TERM);
        }
        let _ = self.switch.wait(PROCESS_DEADLINE);
    }
}

impl Place {
    /// Returns a command of one of its programs, isolated from any other installation.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.root.join(program));
        let data = self.root.join("usr/share/openvswitch");
        command
            .env("OVS_RUNDIR", &self.dir)
            .env("OVS_LOGDIR", &self.dir)
            .env("OVS_DBDIR", &self.dir);
        command.env("OVS_PKGDATADIR", data).env("OVS_SYSCONFDIR", &self.dir).current_dir(&self.dir);
        command
    }

    /// Returns the path of the control socket.
    fn control(&self) -> PathBuf {
        self.dir.join("ctl")
    }

    /// Runs a configuration command and waits until the switch has applied it. Returns its output.
    fn configure(&self, words: &[&str]) -> Result<String> {
        let database = format!("--db=unix:{}/db.sock", self.dir.display());
        run(self.command(CONFIGURE).args([&database, PATIENCE_S]).args(words))
    }
}

fn name(port: usize) -> String {
    format!("vh{port}")
}

fn process(command: &mut Command) -> Result<Process> {
    Ok(Process::start(command.stdout(Stdio::null()))?)
}

/// Runs a command and returns its output.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
}
