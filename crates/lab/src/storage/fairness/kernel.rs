//! Schedulers of the kernel: bfq or mq-deadline on a loop device over a file, with a fio process in a
//! cgroup for each weight. Weights are those of bfq; mq-deadline has none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit::process::find_tool;

use super::KERNELS;
use crate::blk::client::{Load, Window};

/// Controller of block devices in cgroups of version 1.
const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// Scheduler's file of the first loop device, for the check.
const SCHEDULER: &str = "/sys/block/loop0/queue/scheduler";

/// Loop device with a scheduler, and the groups of its processes. They end with it.
pub(super) struct KernelScheduler {
    device: String,
    groups: Vec<PathBuf>,
}

impl KernelScheduler {
    /// Returns why the host lacks these schedulers for loop devices, if so.
    pub(super) fn check() -> Result<(), String> {
        let schedulers = fs::read_to_string(SCHEDULER)
            .map_err(|error| format!("{SCHEDULER} cannot be read: {error}"))?;
        if !KERNELS.iter().all(|(_, name)| schedulers.contains(name)) {
            return Err(format!("loop devices offer {}", schedulers.trim()));
        }
        let statistics = Path::new(BLKIO).join("blkio.bfq.io_serviced");
        if !statistics.exists() {
            return Err(format!("{BLKIO} has no weights of bfq"));
        }
        if !rustix::process::geteuid().is_root() {
            return Err("loop devices and groups need root".into());
        }
        Ok(())
    }

    /// Makes a loop device with this scheduler over a file.
    pub(super) fn new(file: &Path, scheduler: &str) -> Result<Self> {
        let mut command = Command::new(find_tool("losetup", "mount")?);
        command.args(["--find", "--show", "--direct-io=on"]).arg(file);
        let output = command.output().context("cannot start losetup")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "losetup failed: {}", problem.trim());
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let made = Self { device, groups: Vec::new() };
        let name = made.device.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/queue/scheduler");
        fs::write(&path, scheduler).with_context(|| format!("cannot set {path} to {scheduler}"))?;
        Ok(made)
    }

    /// Reads with processes of these weights for the window. Returns their bytes a second.
    pub(super) fn rates(
        mut self,
        weights: [u16; 4],
        load: Load,
        window: Window,
    ) -> Result<[f64; 4]> {
        let running: Result<Vec<Child>> = weights
            .into_iter()
            .enumerate()
            .map(|(number, weight)| self.start(number, weight, load, window))
            .collect();
        let mut rates = [0.0; 4];
        for (rate, child) in rates.iter_mut().zip(running?) {
            let output = child.wait_with_output().context("fio cannot be waited for")?;
            let problem = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "fio failed: {}", problem.trim());
            let json: Value = serde_json::from_slice(&output.stdout).context("fio's output")?;
            let found = json["jobs"][0]["read"]["bw_bytes"].as_f64();
            *rate = found.context("fio tells no rate")?;
        }
        Ok(rates)
    }

    fn start(&mut self, number: usize, weight: u16, load: Load, window: Window) -> Result<Child> {
        let name = format!("ringway-lab-{}-{number}", std::process::id());
        let group = Path::new(BLKIO).join(name);
        fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
        self.groups.push(group.clone());
        let file = group.join("blkio.bfq.weight");
        if let Err(error) = fs::write(&file, weight.to_string()) {
            bail!("cannot set {}: {error}", file.display());
        }
        let mut command = Command::new("/bin/sh");
        // The shell enters the group, and becomes fio.
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(group.join("cgroup.procs"));
        command.arg(find_tool("fio", "fio")?);
        command.args(["--name=w", "--rw=randread", "--direct=1", "--ioengine=libaio"]);
        command.args(["--time_based", "--output-format=json", "--randrepeat=0"]);
        command.arg(format!("--filename={}", self.device));
        command.arg(format!("--bs={}", load.bytes)).arg(format!("--iodepth={}", load.depth));
        command.arg(format!("--ramp_time={}ms", window.warm.as_millis()));
        command.arg(format!("--runtime={}ms", window.measure.as_millis()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot start fio")
    }
}

impl Drop for KernelScheduler {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
        for group in &self.groups {
            let _ = fs::remove_dir(group);
        }
    }
}
