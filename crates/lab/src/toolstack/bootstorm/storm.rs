//! One storm: its guests, their starts, and what was seen meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tempfile::NamedTempFile;
use testkit::guest::small_initramfs;
use testkit::process::find_binary;
use testkit::ringwayd::Ringwayd;
use xenapi::Value;

use crate::experiment::Sample;
use crate::stats::percentile;
use crate::toolstack::caller::Caller;
use crate::toolstack::{Host, params};

/// Memory of a guest, in bytes.
pub(super) const MEMORY_BYTES: i64 = 96 << 20;
/// Memory for the writes of a guest, in bytes. A hundred times as much must be free.
const WRITE_CACHE_BYTES: u64 = 16 << 20;
/// Size of the golden image, in bytes.
const IMAGE_BYTES: usize = 64 << 20;
/// Script of the guests: each reads the whole image before it is ready, and then does nothing.
const SCRIPT: &str = "dd if=/dev/vda of=/dev/null bs=64k 2>/dev/null
    until [ -e /dev/vport*p1 ]; do sleep 0.1; done
    exec qemu-ga -m virtio-serial -p /dev/vport*p1 -t /run >/run/qemu-ga.log 2>&1";
/// Longest storm.
const DEADLINE: Duration = Duration::from_secs(1800);
/// Longest wait for an event, after which the guests are looked at all the same.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
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
    pub(super) fn prepare(config: &NamedTempFile, guests: usize) -> Result<Self> {
        let config = config.path().display().to_string();
        let options = ["--config", &config, "--hypervisor", "qemu", "--slices", "auto"];
        let mut host = Host::start(Ringwayd::start(&options)?)?;
        let template = template(&host.daemon)?;
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
    fn ready(&mut self) -> Result<Vec<Duration>> {
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
        for (pid, words) in self.host.daemon.started() {
            if !words.split(' ').any(|word| word == "-kernel") {
                continue;
            }
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            let pss = pss.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
            kib.push(pss.context("a process has no Pss")?);
        }
        ensure!(kib.len() == self.guests.len(), "{} of the guests run", kib.len());
        Ok(kib.iter().sum::<f64>() / kib.len() as f64 / 1024.0)
    }

    /// Returns the blocks that the source has served.
    fn fetched(&self) -> Result<f64> {
        let mut most: u64 = 0;
        for folder in fs::read_dir(self.host.daemon.dir().join("run/io"))? {
            let control = folder?.path().join("control.sock");
            if !control.exists() {
                continue;
            }
            let mut command = Command::new(find_binary("ringway")?);
            let stats = command.args(["io", "stats", "--control"]).arg(&control).output()?.stdout;
            let stats: serde_json::Value = serde_json::from_slice(&stats)?;
            let disks = stats["disks"].as_array().into_iter().flatten();
            most = disks.filter_map(|disk| disk["golden"]["fetched"].as_u64()).fold(most, u64::max);
        }
        Ok(most as f64)
    }
}

/// Creates the template of the guests, with the golden image as its disk.
fn template(daemon: &Ringwayd) -> Result<Value> {
    let source = daemon.dir().join("golden.raw");
    let words = (0..IMAGE_BYTES / 8).flat_map(|word| word.to_le_bytes());
    fs::write(&source, words.collect::<Vec<u8>>())?;
    let source = format!("device-config:source={}", source.display());
    let ram = format!("device-config:write-cache-ram={WRITE_CACHE_BYTES}");
    let sr = ["sr-create", "type=golden", "name-label=golden", &source, &ram];
    let sr = daemon.xe_prints(&sr)?;
    let vdi = daemon.xe_prints(&["vdi-list", &format!("sr-uuid={sr}"), "--minimal"])?;
    let name = "new-name-label=desktop";
    let vm = daemon.xe_prints(&["vm-install", "template=Ringway test guest", name])?;
    let (vm, of) = (format!("uuid={vm}"), format!("vm-uuid={vm}"));
    let disks = daemon.xe_prints(&["vbd-list", &of, "type=Disk", "--minimal"])?;
    for disk in disks.split(',').filter(|disk| !disk.is_empty()) {
        daemon.xe_prints(&["vbd-destroy", &format!("uuid={disk}")])?;
    }
    let vdi = format!("vdi-uuid={vdi}");
    daemon.xe_prints(&["vbd-create", &of, &vdi, "device=0", "mode=RW"])?;
    let args = daemon.xe_prints(&["vm-param-get", &vm, "param-name=PV-args"])?;
    let script = BASE64_STANDARD.encode(SCRIPT);
    let args = format!("PV-args={args} ringway.agent=script ringway.run={script}");
    let ramdisk = format!("PV-ramdisk={}", small_initramfs()?.display());
    daemon.xe_prints(&["vm-param-set", &vm, &args, &ramdisk, "is-a-template=true"])?;
    let mut client = daemon.client()?;
    let uuid = vm.trim_start_matches("uuid=");
    let template = client.call("VM.get_by_uuid", &[Value::text(uuid)])?;
    let limits = [MEMORY_BYTES; 4].map(Value::Int);
    let limits = std::iter::once(template.clone()).chain(limits).collect::<Vec<_>>();
    client.call("VM.set_memory_limits", &limits)?;
    Ok(template)
}
