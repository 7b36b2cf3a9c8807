//! One storm: its guests, their starts, and what was seen meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::NamedTempFile;
use testkit::process::find_binary;
use testkit::ringwayd::Ringwayd;
use xenapi::Value;

use super::template::{Load, template};
use crate::experiment::Sample;
use crate::stats::percentile;
use crate::toolstack::caller::Caller;
use crate::toolstack::{Host, params};

/// Longest storm.
const DEADLINE: Duration = Duration::from_secs(1800);
/// Longest wait for an event, after which the guests are looked at all the same.
pub(super) const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Parts of a guest's start.
const STAGES: [&str; 5] = ["place", "devices", "firmware", "kernel", "services"];
/// Key of the time at which a guest was ready.
const READY: &str = "boot-guest-ms";

/// Daemon with halted guests.
pub(super) struct Storm {
    pub(super) host: Host,
    /// References of the guests.
    guests: Vec<String>,
}

impl Storm {
    pub(super) fn prepare(config: &NamedTempFile, guests: usize, load: Load) -> Result<Self> {
        let config = config.path().display().to_string();
        let options = ["--config", &config, "--hypervisor", "qemu", "--slices", "auto"];
        let mut host = Host::start(Ringwayd::start(&options)?)?;
        let template = template(&host.daemon, load)?;
        let mut made = Vec::new();
        for number in 0..guests {
            let name = Value::text(format!("desktop-{number}"));
            let clone = host.client.run("VM.clone", &[template.clone(), name], DEADLINE)?;
            host.client.run("VM.provision", std::slice::from_ref(&clone), DEADLINE)?;
            let Value::Str(reference) = clone else { bail!("a clone is no reference") };
            made.push(reference);
        }
        Ok(Self { host, guests: made })
    }

    /// Starts all guests and waits until each is ready.
    pub(super) fn run(mut self) -> Result<Sample> {
        let over = Arc::new(AtomicBool::new(false));
        let mut caller = Caller::start(&self.host.daemon, None)?;
        let stop = Arc::clone(&over);
        let calls = std::thread::spawn(move || caller.calls_until(&stop));
        let ready = self.ready();
        over.store(true, Ordering::Relaxed);
        let calls = calls.join().map_err(|_| anyhow::anyhow!("the caller panicked"))?;
        let (ready, mut calls) = (ready?, calls?);
        let quarter = self.guests.len() / 4;
        let at = |count: usize| ready[count - 1].as_secs_f64();
        let (first, last) = (at(quarter), at(ready.len()) - at(ready.len() - quarter));
        let metrics = [
            ("first_ready_s", at(1)),
            ("half_ready_s", at(ready.len() / 2)),
            ("all_ready_s", at(ready.len())),
            ("quarter_ratio", last / first),
            ("xe_p50_ms", percentile(&mut calls, 50)),
            ("xe_p99_ms", percentile(&mut calls, 99)),
            ("xe_calls", calls.len() as f64),
            ("pss_mib", self.pss_mib()?),
            ("fetched", self.fetched()?),
        ];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value));
        Ok(metrics.into_iter().chain(self.stages()?).collect())
    }

    /// Returns when the guests were ready after the first call, in order.
    pub(super) fn ready(&mut self) -> Result<Vec<Duration>> {
        let client = &mut self.host.client;
        let mut metrics = BTreeSet::new();
        for guest in &self.guests {
            metrics.insert(client.record("VM", guest)?.text("metrics").to_owned());
        }
        let (from, mut token) = (Instant::now(), String::new());
        let mut starts = Vec::new();
        for guest in &self.guests {
            starts.push(client.begin("VM.start", &params("VM.start", guest))?);
        }
        let mut ready = Vec::new();
        while !metrics.is_empty() {
            ensure!(from.elapsed() < DEADLINE, "{} guests are not ready", metrics.len());
            let batch = client.events(&["vm_metrics"], &token, EVENT_TIMEOUT)?;
            token = batch.token;
            let records = client.records("VM_metrics")?;
            for (reference, record) in records {
                if record.pairs("other_config").contains_key(READY) && metrics.remove(&reference) {
                    ready.push(from.elapsed());
                }
            }
        }
        for start in starts {
            client.end(start, DEADLINE)?;
        }
        Ok(ready)
    }

    /// Returns the time of each part of a start in seconds, on average over all guests that report it.
    fn stages(&mut self) -> Result<Vec<(String, f64)>> {
        let records = self.host.client.records("VM_metrics")?;
        let times = |stage: &str| {
            let key = format!("boot-{stage}-ms");
            let all = records.iter().filter_map(|(_, record)| {
                record.pairs("other_config").get(&*key)?.parse::<f64>().ok()
            });
            all.collect::<Vec<_>>()
        };
        let mean = |stage: &str| {
            let times = times(stage);
            let mean = times.iter().sum::<f64>() / times.len() as f64 / 1e3;
            (!times.is_empty()).then(|| (format!("{stage}_s"), mean))
        };
        Ok(STAGES.into_iter().filter_map(mean).collect())
    }

    /// Returns the proportional memory of a guest's QEMU in MiB, on average.
    fn pss_mib(&self) -> Result<f64> {
        let mut kib = Vec::new();
        for pid in self.running() {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            let pss = pss.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
            kib.push(pss.context("a process has no Pss")?);
        }
        ensure!(kib.len() == self.guests.len(), "{} of the guests run", kib.len());
        Ok(kib.iter().sum::<f64>() / kib.len() as f64 / 1024.0)
    }

    /// Returns the process ids of the guests that run.
    pub(super) fn running(&self) -> Vec<u32> {
        let started = self.host.daemon.started().into_iter();
        let is_guest = |words: &str| words.split(' ').any(|word| word == "-kernel");
        started.filter(|(_, words)| is_guest(words)).map(|(pid, _)| pid).collect()
    }

    /// Returns the blocks that the source has served.
    fn fetched(&self) -> Result<f64> {
        let fetched =
            self.disks()?.iter().filter_map(|disk| disk["golden"]["fetched"].as_u64()).max();
        Ok(fetched.unwrap_or_default() as f64)
    }

    /// Returns the statistics of all disks.
    pub(super) fn disks(&self) -> Result<Vec<serde_json::Value>> {
        let mut disks = Vec::new();
        for folder in fs::read_dir(self.host.daemon.dir().join("run/io"))? {
            let control = folder?.path().join("control.sock");
            if !control.exists() {
                continue;
            }
            let mut command = Command::new(find_binary("ringway")?);
            let stats = command.args(["io", "stats", "--control"]).arg(&control).output()?.stdout;
            let mut stats: serde_json::Value = serde_json::from_slice(&stats)?;
            disks.extend(stats["disks"].as_array_mut().map(std::mem::take).into_iter().flatten());
        }
        Ok(disks)
    }
}
