//! For how long each disk was busy, from the counts that the datapath is asked for now and then.
//!
//! Requests by the lifetime of a process say little about a disk that idles most of it. So the
//! counts are sampled, and a disk was busy in a sample's time if it completed something in it.

use std::collections::BTreeMap;
use std::time::Duration;

use model::report::{DiskStats, Latency, OpCounts, Stats};

/// Time between samples. A burst shorter than this counts as this long: the rate that comes out
/// is a lower bound.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Busy time by disk, and the counts of workers that were replaced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BusyTracker {
    busy: BTreeMap<String, Duration>,
    last: BTreeMap<String, Counts>,
    last_uptime_seconds: f64,
    /// The process that the last sample is of.
    pid: u32,
    /// Last counts of those before it.
    former: BTreeMap<String, Counts>,
}

/// What of a disk's counts goes on over the processes that served it. Times cannot be added: they
/// are those of the last process that had any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    requests: OpCounts,
    bytes: OpCounts,
    errors: u64,
    latency: Latency,
}

impl Counts {
    fn of(disk: &DiskStats) -> Self {
        let DiskStats { requests, bytes, errors, latency, .. } = disk;
        Self { requests: *requests, bytes: *bytes, errors: *errors, latency: *latency }
    }

    fn add(&mut self, other: &Self) {
        self.requests.add(&other.requests);
        self.bytes.add(&other.bytes);
        self.errors = self.errors.saturating_add(other.errors);
        if other.latency.count > 0 {
            self.latency = other.latency;
        }
    }
}

impl BusyTracker {
    /// Takes one sample.
    pub fn sample(&mut self, stats: &Stats) {
        if stats.pid != self.pid {
            // Another process, which counts from the start.
            for (id, counts) in std::mem::take(&mut self.last) {
                self.former.entry(id).or_default().add(&counts);
            }
            (self.pid, self.last_uptime_seconds) = (stats.pid, 0.0);
        }
        let passed = (stats.uptime_seconds - self.last_uptime_seconds).max(0.0);
        self.last_uptime_seconds = stats.uptime_seconds;
        // A wild number from outside is no reason to end.
        let passed = Duration::try_from_secs_f64(passed).unwrap_or_default();
        for disk in &stats.disks {
            let counts = Counts::of(disk);
            let before = self.last.insert(disk.id.clone(), counts).unwrap_or_default();
            if disk.requests.total() > before.requests.total() {
                *self.busy.entry(disk.id.clone()).or_default() += passed;
            }
        }
    }

    /// The counts of `stats` with those of the processes before that one; what those did after
    /// their last sample is missing.
    pub fn whole(&self, mut stats: Stats) -> Stats {
        for disk in &mut stats.disks {
            let Some(former) = self.former.get(&disk.id) else { continue };
            let mut sum = *former;
            sum.add(&Counts::of(disk));
            let Counts { requests, bytes, errors, latency } = sum;
            (disk.requests, disk.bytes) = (requests, bytes);
            (disk.errors, disk.latency) = (errors, latency);
        }
        stats
    }

    /// Requests a second while the disk was busy, of `requests` in all; 0 for one that never was.
    pub fn rate(&self, id: &str, requests: u64) -> f64 {
        match self.busy.get(id).map(Duration::as_secs_f64) {
            Some(seconds) if seconds > 0.0 => requests as f64 / seconds,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::spec::Backend;

    fn stats(uptime_seconds: f64, reads: u64) -> Stats {
        let mut disk = DiskStats::new("d", Backend::Null(512), 512);
        disk.requests.read = reads;
        let version = String::new();
        Stats {
            version,
            pid: 1,
            uptime_seconds,
            ports: Vec::new(),
            reactors: Vec::new(),
            disks: vec![disk],
            nics: Vec::new(),
            networks: Vec::new(),
            poll_defaults: None,
            keeper: None,
            began: None,
            reactors_why: None,
            queues_moved: 0,
        }
    }

    #[test]
    fn idle_times_do_not_count() {
        let mut busy_tracker = BusyTracker::default();
        for (uptime, reads) in [(1.0, 0), (2.0, 100), (12.0, 100), (13.0, 300)] {
            busy_tracker.sample(&stats(uptime, reads));
        }
        assert!((busy_tracker.rate("d", 300) - 150.0).abs() < 1e-6, "{busy_tracker:?}");
        assert_eq!(busy_tracker.rate("other", 1), 0.0);
    }

    #[test]
    fn the_counts_of_a_worker_that_died_are_added() {
        let mut busy_tracker = BusyTracker::default();
        for (pid, uptime, reads) in [(7, 1.0, 10), (7, 2.0, 100), (8, 0.5, 0), (8, 1.0, 30)] {
            busy_tracker.sample(&Stats { pid, ..stats(uptime, reads) });
        }
        let whole = busy_tracker.whole(Stats { pid: 8, ..stats(1.0, 30) });
        assert_eq!(whole.disks[0].requests.read, 130);
        assert!((busy_tracker.rate("d", 130) - 130.0 / 2.5).abs() < 1e-6, "{busy_tracker:?}");
    }

    #[test]
    fn wild_clocks_do_no_harm() {
        let mut busy_tracker = BusyTracker::default();
        for uptime in [5.0, 1.0, f64::INFINITY, f64::NAN] {
            busy_tracker.sample(&stats(uptime, 1));
        }
        assert!(busy_tracker.rate("d", 1).is_finite());
    }
}
