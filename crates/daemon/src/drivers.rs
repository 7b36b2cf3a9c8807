//! Drivers that carry out steps on this host.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use toolstack::binaries::{QEMU, RINGWAY_IO, in_path, ours};
use toolstack::cgroup::SliceTree;
use toolstack::detached_process;
use toolstack::helper_command::HelperCommand;
use toolstack::hv::qemu::{self, QemuHypervisor};
use toolstack::machines::{Drivers, Meminfo, ProcStat};
use toolstack::net::HostNet;
use toolstack::ringway_io::{IoDatapaths, IoLaunch, IoSwitch};
use toolstack::sim::{self, Sim};
use toolstack::sr::SrDriver;
use toolstack::sr::delay::{DelayedDriver, SLOW_DIR};
use toolstack::sr::dir::{DIR_TYPES, DirDriver};
use toolstack::sr::golden::GoldenDriver;
use toolstack::sr::iso::IsoDriver;
use toolstack::sr::worker;

use crate::config::DaemonConfig;
use crate::options::HypervisorKind;

/// Program that creates bridges and TAP devices.
const IP: &str = "ip";
/// Directory of the simulated host, in the state directory.
const SIMULATED: &str = "simulator";
/// Default directory of SRs of golden images, in the state directory.
const USUAL_GOLDEN: &str = "golden";
/// Default directory of an SR, in the state directory.
pub const USUAL_SR: &str = "sr/default";

/// Creates the configured drivers. Processes that they start join the control groups of this tree.
///
/// # Errors
/// Fails if a required program is missing.
pub fn drivers(settings: &DaemonConfig, tree: Option<&SliceTree>) -> anyhow::Result<Drivers> {
    match settings.hypervisor {
        HypervisorKind::Simulator => {
            let dir = settings.state.join(SIMULATED);
            let sim = Sim::open(&dir).with_context(|| {
                format!("the simulated host in {} cannot be opened", dir.display())
            })?;
            Ok(sim::drivers(&sim))
        }
        HypervisorKind::Qemu => of_host(settings, tree.cloned()),
    }
}

fn of_host(settings: &DaemonConfig, tree: Option<SliceTree>) -> anyhow::Result<Drivers> {
    let guests = qemu::Settings {
        boot_directories: settings.boot.clone(),
        tree: tree.clone(),
        ..qemu::Settings::usual(program(QEMU)?, settings.run.clone())
    };
    let launch = IoLaunch {
        program: ours(RINGWAY_IO)?,
        options: vec!["--share-folder".into(), settings.run.clone().into()],
        helper: HelperCommand::ourselves(detached_process::MODE),
        tree,
    };
    let switch = IoSwitch::new(&settings.run, launch.clone());
    let deadline = worker::call_deadline(settings.deadlines.storage);
    let workers = worker::Host::new(HelperCommand::ourselves(worker::MODE), deadline);
    let usual = settings.state.join(USUAL_SR);
    let mut srs: Vec<Arc<dyn SrDriver>> = Vec::new();
    for kind in DIR_TYPES {
        srs.push(Arc::new(DirDriver::new(kind, workers.clone(), usual.clone())));
    }
    let folders = srs.clone();
    let slow = Arc::new(DirDriver::new(SLOW_DIR, workers.clone(), usual));
    srs.push(Arc::new(DelayedDriver::new(SLOW_DIR, slow)));
    srs.push(Arc::new(IsoDriver::new(workers.clone())));
    let io = Arc::new(IoDatapaths::new(&settings.run, launch));
    let usual_golden = settings.state.join(USUAL_GOLDEN);
    srs.push(Arc::new(GoldenDriver::new(workers, io.clone(), usual_golden, folders)));
    // The state directory identifies the daemon, because two daemons of a host have different ones.
    let instance = settings.state.to_string_lossy();
    Ok(Drivers {
        hv: Arc::new(QemuHypervisor::new(guests)),
        io,
        net: Arc::new(HostNet::new(program(IP)?, &instance)),
        switch: Arc::new(switch.context("cannot set up the switch of all networks")?),
        memory: Arc::new(Meminfo),
        cpus: Some(Arc::new(ProcStat)),
        srs,
    })
}

fn program(name: &str) -> anyhow::Result<PathBuf> {
    in_path(name).with_context(|| format!("{name} is not in PATH: install the package that has it"))
}
