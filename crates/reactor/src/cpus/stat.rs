//! Idle time of CPUs, as the kernel reports it.

use std::collections::{BTreeMap, BTreeSet};

/// Nanoseconds for which each CPU was idle since boot.
pub(super) type Idle = BTreeMap<u32, u64>;

/// Reads the idle times of the CPUs with these numbers. The result omits CPUs that are offline.
///
/// # Errors
/// Fails if `/proc/stat` cannot be read or is not text.
pub(super) fn read(cpus: impl Iterator<Item = u32>) -> std::io::Result<Idle> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    Ok(parse(&text, &cpus.collect(), 1_000_000_000 / ticks))
}

fn parse(text: &str, cpus: &BTreeSet<u32>, tick_ns: u64) -> Idle {
    let lines = text.lines().filter_map(|line| line.strip_prefix("cpu"));
    let of = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.parse().ok().filter(|cpu| cpus.contains(cpu))?;
        // user, nice, system, idle, iowait
        let idle: u64 = words.nth(3)?.parse().ok()?;
        let iowait: u64 = words.next()?.parse().ok()?;
        Some((cpu, idle.saturating_add(iowait).saturating_mul(tick_ns)))
    };
    // The first line is the sum of all CPUs, and its name has no number.
    lines
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()))
        .filter_map(of)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "cpu  10 20 30 400 50 0 0 0 0 0\n\
        cpu0 1 2 3 40 5 6 7 8 9 10\ncpu2 1 2 3 70 1 6 7 8 9 10\ncpu11 1 2 3 4\ncpux\n\
        intr 1 2 3\nctxt 5\n";

    #[test]
    fn idle_and_waiting_are_free() {
        let all = BTreeSet::from([0, 1, 2, 11]);
        assert_eq!(parse(TEXT, &all, 10), Idle::from([(0, 450), (2, 710)]));
        assert_eq!(parse(TEXT, &BTreeSet::from([2]), 10), Idle::from([(2, 710)]));
        assert_eq!(parse("", &all, 10), Idle::new());
        let huge = format!("cpu0 1 1 1 {0} {0}", u64::MAX);
        assert_eq!(parse(&huge, &all, 10), Idle::from([(0, u64::MAX)]));
    }

    #[test]
    fn this_machine_tells_them() {
        let idle = read(0..1024).unwrap();
        assert!(!idle.is_empty());
    }
}
