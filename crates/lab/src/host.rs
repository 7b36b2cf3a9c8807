//! Facts about the host, and its CPU time during a sample.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use testkit::process::{find_binary, find_tool};

/// Facts that a reader needs to judge figures of this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Model name of the first CPU.
    pub cpu_model: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// True if the CPU reports a hypervisor.
    pub virtual_machine: bool,
    /// Load average of one minute at the start.
    pub load_before: f64,
    /// Load average of one minute at the end.
    pub load_after: f64,
}

impl Host {
    /// Reads the facts. Sets both load averages to the current one.
    #[must_use]
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, v)| v.trim().to_owned())
        };
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = meminfo.split_whitespace().nth(1).and_then(|v| v.parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu_model: field("model name").unwrap_or_else(|| "unknown".into()),
            cpus: crate::cpu::allowed().map_or(0, |cpus| cpus.len()),
            memory_mib: kib.unwrap_or(0) / 1024,
            kernel: kernel.trim().to_owned(),
            virtual_machine: field("flags").is_some_and(|f| f.contains(" hypervisor")),
            load_before: load(),
            load_after: load(),
        }
    }
}

/// Returns the load average of one minute, or 0 if unknown.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|v| v.parse().ok()).unwrap_or(0.0)
}

/// Returns the first line of a program's `--version`, or the reason why there is none.
#[must_use]
pub fn version_of(program: &std::path::Path) -> String {
    match Command::new(program).arg("--version").output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").to_owned()
        }
        Ok(output) => format!("unknown (--version ended with {})", output.status),
        Err(error) => format!("unknown ({error})"),
    }
}

/// External program: its name in tables, its program name, and its Debian package.
pub type Tool = (&'static str, &'static str, &'static str);

/// `qemu-storage-daemon`.
pub const QSD: Tool = ("qsd", "qemu-storage-daemon", "qemu-system-common");

/// `qemu-img`.
pub const QEMU_IMG: Tool = ("qemu-img", "qemu-img", "qemu-utils");

/// fio.
pub const FIO: Tool = ("fio", "fio", "fio");

/// Returns the versions of all measured programs: tools and one of our own programs.
///
/// # Errors
/// A program is missing. The error names the remedy.
pub fn versions(tools: &[Tool], ours: Option<&str>) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for (name, program, package) in tools {
        versions.insert((*name).to_owned(), version_of(&find_tool(program, package)?));
    }
    if let Some(ours) = ours {
        versions.insert(ours.to_owned(), version_of(&find_binary(ours)?));
    }
    Ok(versions)
}

/// CPU time of the whole host, in seconds since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostTime {
    /// CPU time that is neither idle nor steal.
    pub busy_s: f64,
    /// Steal time, which the hypervisor gave to other VMs.
    pub steal_s: f64,
}

impl HostTime {
    /// Reads the counters. Their resolution is one tick, 10 ms.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read or parsed.
    pub fn now() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&stat).context("/proc/stat has no cpu line that can be read")
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<f64> = line.split_whitespace().map_while(|v| v.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal
        let sum = |fields: &[usize]| fields.iter().filter_map(|i| ticks.get(*i)).sum::<f64>();
        let steal = *ticks.get(7)?;
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let busy_s = sum(&[0, 1, 2, 5, 6]) / per_second;
        Some(Self { busy_s, steal_s: steal / per_second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_time_adds_what_is_busy() {
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let time = HostTime::parse("cpu  1 2 3 1000 50 4 5 7 0 0\ncpu0 1").unwrap();
        assert_eq!(time.busy_s, 15.0 / per_second);
        assert_eq!(time.steal_s, 7.0 / per_second);
        assert!(HostTime::parse("cpu0 1 2").is_none());
        assert!(HostTime::now().unwrap().busy_s > 0.0);
    }

    #[test]
    fn facts_are_read() {
        let host = Host::read();
        assert!(host.cpus > 0 && host.memory_mib > 0 && !host.kernel.is_empty());
    }
}
