//! CPU time of the host.

use std::fmt;

/// CPU time of the host since its boot, in units of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time of all CPUs.
    pub total: u64,
    /// Part of it in which a CPU had nothing to do.
    pub idle: u64,
}

/// Source of the host's CPU time.
pub trait HostCpus: fmt::Debug + Send + Sync {
    /// Reads the present values.
    fn read(&self) -> CpuTime;
}

/// The kernel's values in `/proc/stat`.
#[derive(Clone, Copy, Debug)]
pub struct ProcStat;

impl HostCpus for ProcStat {
    fn read(&self) -> CpuTime {
        parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }
}

/// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal; guest times are parts
/// of user. Unreadable values show no idle CPU.
fn parse(stat: &str) -> CpuTime {
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    let idle = ticks.iter().skip(3).take(2).fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
    CpuTime { total: ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks)), idle }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account_is_read() {
        let stat = "cpu  10 1 5 100 20 2 3 4 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse(stat), CpuTime { total: 145, idle: 120 });
        for stat in ["", "cpu", "intr 1 2 3", "cpu  a b c d e"] {
            assert_eq!(parse(stat).idle, 0, "{stat}");
        }
        assert!(ProcStat.read().total >= ProcStat.read().idle);
    }
}
