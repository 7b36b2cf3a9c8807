//! CPU time that the quotas of control groups leave.
//!
//! A quota limits the CPU time of a group in each period (`CPUQuota=` of a unit, `--cpus` of a
//! container). When the group has used its quota, the kernel stops all its threads until the next
//! period. A spin that uses the quota up takes that time from the requests of every disk. So a
//! quota must leave a whole CPU for each spinning reactor. While the kernel throttles a group, or
//! has done so recently ([`Throttled`]), no reactor spins. This applies to each group that contains
//! this process, directly or as an ancestor.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::groups::{Group, Version};

/// Most bytes read of a file: the longest file needed has some twenty short lines.
const FILE_MAX: u64 = 8192;
/// Time for which no reactor spins after the kernel has throttled a group: at first and at most.
/// The time doubles whenever throttling follows spins that were allowed again.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_MAX_NS: u64 = 60_000_000_000;

/// CPU quota of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuQuota {
    /// Thousandths of a CPU.
    pub(super) permille: u64,
    /// Periods in which the kernel throttled the group.
    pub(super) throttled: u64,
    /// CPU time that the whole group has used, in nanoseconds. If the group does not report it, the
    /// CPU time of this process.
    pub(super) used_ns: u64,
}

/// Groups with a quota, by their directories.
pub(super) type CpuQuotas = BTreeMap<PathBuf, CpuQuota>;

/// Reads the quotas of `groups`. A group whose files cannot be read counts as one without a quota.
pub(super) fn read(groups: &[Group]) -> CpuQuotas {
    let limit = |group: &Group| Some((group.folder.clone(), limit(group)?));
    groups.iter().filter_map(limit).collect()
}

fn limit(group: &Group) -> Option<CpuQuota> {
    let file = |name: &str| text(&group.folder.join(name));
    let permille = match group.version {
        Version::One => permille(&file("cpu.cfs_quota_us")?, &file("cpu.cfs_period_us")?)?,
        Version::Two => {
            let max = file("cpu.max")?;
            let (quota, period) = max.trim().split_once(' ')?;
            permille(quota, period)?
        }
    };
    let stat = file("cpu.stat").unwrap_or_default();
    let used = match group.version {
        // Present if the two controllers are mounted together.
        Version::One => file("cpuacct.usage").and_then(|text| text.trim().parse().ok()),
        Version::Two => value(&stat, "usage_usec").map(|us| us.saturating_mul(1000)),
    };
    let throttled = value(&stat, "nr_throttled").unwrap_or_default();
    Some(CpuQuota { permille, throttled, used_ns: used.unwrap_or_else(own_ns) })
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

/// Returns the quota in thousandths of a CPU. Returns `None` for no quota, which the kernel writes
/// as `max` or -1.
fn permille(quota: &str, period: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (quota, period) = (number(quota)?, number(period).filter(|period| *period > 0)?);
    Some(quota.saturating_mul(1000) / period)
}

/// Returns a value of a file whose lines hold a name and a number.
fn value(stat: &str, name: &str) -> Option<u64> {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    stat.lines().find_map(of)
}

/// Returns the CPU time that this process has used.
fn own_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Returns the CPU time, in nanoseconds, that the tightest group left in the `elapsed_ns` between
/// two readings for threads that used `used_ns` of it. Returns `None` if no group has a quota.
pub(super) fn left(
    before: &CpuQuotas,
    now: &CpuQuotas,
    elapsed_ns: u64,
    used_ns: u64,
) -> Option<u64> {
    let of = |(folder, limit): (&PathBuf, &CpuQuota)| {
        let all = u128::from(limit.permille) * u128::from(elapsed_ns) / 1000;
        let before = before.get(folder).map_or(limit.used_ns, |before| before.used_ns);
        let others = limit.used_ns.saturating_sub(before).saturating_sub(used_ns);
        u64::try_from(all).unwrap_or(u64::MAX).saturating_sub(others)
    };
    now.iter().map(of).min()
}

/// Tracks whether the kernel throttles one of the groups.
#[derive(Debug, Default)]
pub(super) struct Throttled {
    seen: BTreeMap<PathBuf, u64>,
    until: u64,
    pause: u64,
}

impl Throttled {
    /// Forgets the counts: throttling before now was not caused by spins.
    pub(super) fn begin(&mut self) {
        self.seen.clear();
    }

    /// Adds a reading at `now`, in nanoseconds.
    pub(super) fn add(&mut self, now: u64, limits: &CpuQuotas) {
        let counts = limits.iter().map(|(folder, limit)| (folder.clone(), limit.throttled));
        let counts: BTreeMap<_, _> = counts.collect();
        let grown = |(folder, count): (&PathBuf, &u64)| {
            self.seen.get(folder).is_some_and(|before| count > before)
        };
        if counts.iter().any(grown) {
            if now >= self.until {
                self.pause = (self.pause * 2).clamp(PAUSE_NS, PAUSE_MAX_NS);
            }
            self.until = now.saturating_add(self.pause);
        } else if now.saturating_sub(self.until) > PAUSE_MAX_NS {
            self.pause = 0;
        }
        self.seen = counts;
    }

    /// Returns whether spinning is forbidden at `now`.
    pub(super) fn forbids(&self, now: u64) -> bool {
        now < self.until && !self.seen.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Creates a group of files with these contents.
    fn group(version: Version, files: &[(&str, &[u8])]) -> (tempfile::TempDir, Group) {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let folder = dir.path().to_owned();
        (dir, Group { version, folder })
    }

    #[test]
    fn both_versions_tell_quota_use_and_stops() {
        let stat = b"usage_usec 7000\nuser_usec 1\nnr_periods 9\nnr_throttled 4\n";
        let (_dir, two) =
            group(Version::Two, &[("cpu.max", b"150000 100000\n"), ("cpu.stat", stat)]);
        let expected = CpuQuota { permille: 1500, throttled: 4, used_ns: 7_000_000 };
        assert_eq!(limit(&two), Some(expected));
        let mut files: Vec<(&str, &[u8])> = vec![
            ("cpu.cfs_quota_us", b"50000\n"),
            ("cpu.cfs_period_us", b"100000\n"),
            ("cpu.stat", b"nr_periods 0\nnr_throttled 2\nthrottled_time 5\n"),
            ("cpuacct.usage", b"12345\n"),
        ];
        let (_dir, one) = group(Version::One, &files);
        let expected = CpuQuota { permille: 500, throttled: 2, used_ns: 12_345 };
        assert_eq!(limit(&one), Some(expected));
        files.truncate(2);
        let (_dir, bare) = group(Version::One, &files);
        let own = limit(&bare).unwrap();
        assert!(own.used_ns > 0 && own.throttled == 0, "{own:?}");
        assert_eq!(read(&[two, one, bare]).len(), 3);
    }

    #[test]
    fn no_quota_is_none_and_so_is_what_no_kernel_tells() {
        let max = |text: &[u8]| {
            let (_dir, group) = group(Version::Two, &[("cpu.max", text)]);
            limit(&group).map(|limit| limit.permille)
        };
        for text in ["max 100000\n", "", "\n", "1", "1 0", "-1 100000", "1 -1", "x y", "1e5 1e5"] {
            assert_eq!(max(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(max(b"\xff\xfe 1"), None);
        assert_eq!(max(format!("{} 1", u64::MAX).as_bytes()), Some(u64::MAX));
        assert_eq!(max(b"0 100000"), Some(0));
        assert_eq!(max(&b"9".repeat(100_000)), None);
        assert_eq!(permille("-1\n", "100000\n"), None);
        let stat =
            "nr_throttled_x 1\nnr_throttled\nnr_throttled x\nnr_throttled 18446744073709551616\n";
        assert_eq!(value(stat, "nr_throttled"), None);
        let (_dir, folder) = group(Version::One, &[]);
        assert_eq!(read(&[folder]), CpuQuotas::new());
        let gone = Group { version: Version::Two, folder: "/nowhere/at/all".into() };
        assert_eq!(read(&[gone]), CpuQuotas::new());
    }

    fn one(permille: u64, used_ns: u64, throttled: u64) -> CpuQuotas {
        CpuQuotas::from([("/g".into(), CpuQuota { permille, throttled, used_ns })])
    }

    #[test]
    fn what_others_of_the_group_use_is_not_left() {
        assert_eq!(left(&one(1500, 0, 0), &one(1500, S, 0), S, S), Some(S * 3 / 2));
        assert_eq!(left(&one(1500, 0, 0), &one(1500, S, 0), S, S / 4), Some(S * 3 / 4));
        assert_eq!(left(&CpuQuotas::new(), &one(1500, S, 0), S, 0), Some(S * 3 / 2), "it is new");
        assert_eq!(left(&one(500, 0, 0), &CpuQuotas::new(), S, 0), None);
        let mut two = one(1500, 0, 0);
        two.insert("/g/h".into(), CpuQuota { permille: 200, throttled: 0, used_ns: 0 });
        assert_eq!(left(&two, &two, S, 0), Some(S / 5), "the tightest");
        let most = one(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(left(&most, &most, u64::MAX, u64::MAX), Some(u64::MAX));
        assert_eq!(left(&most, &one(0, 0, 0), u64::MAX, 0), Some(0));
    }

    #[test]
    fn a_group_that_is_stopped_does_not_spin_for_longer_and_longer() {
        let mut throttled = Throttled::default();
        throttled.add(S, &one(1500, 0, 7));
        assert!(!throttled.forbids(S), "it was stopped before somebody span");
        let (mut now, mut count, mut pauses) = (S, 7, Vec::new());
        for _ in 0..8 {
            count += 1;
            throttled.add(now, &one(1500, 0, count));
            assert!(throttled.forbids(now));
            pauses.push((throttled.until - now) / S);
            now = throttled.until;
            throttled.add(now, &one(1500, 0, count));
            assert!(!throttled.forbids(now));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        // Throttled while no reactor spins: the pause lasts as long as the throttling and does not
        // double.
        throttled.add(now, &one(1500, 0, count + 1));
        throttled.add(now + S, &one(1500, 0, count + 2));
        assert_eq!(throttled.until, now + 61 * S);
        assert!(throttled.forbids(now + 60 * S));
        now = throttled.until + 61 * S;
        throttled.add(now, &one(1500, 0, count + 2));
        throttled.add(now, &one(1500, 0, count + 3));
        assert_eq!(throttled.until, now + S, "it begins anew");
        // A removed quota forbids nothing, and neither do the counts of the time without it.
        throttled.add(now, &CpuQuotas::new());
        assert!(!throttled.forbids(now));
        throttled.begin();
        throttled.add(now + 9 * S, &one(1500, 0, count + 9));
        assert!(!throttled.forbids(now + 9 * S));
        throttled.add(u64::MAX, &one(0, 0, u64::MAX));
        throttled.add(0, &one(0, 0, 0));
    }
}
