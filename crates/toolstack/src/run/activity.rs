//! Busy time of each disk, sampled from the datapath's counters.
//!
//! Requests divided by the process's lifetime say little about a disk that mostly idles. So the
//! counters are sampled. A disk was busy during an interval if it completed a request in it.

use std::collections::BTreeMap;
use std::time::Duration;

use model::report::{DiskStats, Latency, OpCounts, Stats};

/// Sampling interval. A shorter burst counts as a whole interval, so the resulting rate is a lower
/// bound.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Busy time of each disk, and the counters of replaced workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BusyTracker {
    busy: BTreeMap<String, Duration>,
    last: BTreeMap<String, Counts>,
    last_uptime_seconds: f64,
    /// Process of the last sample.
    pid: u32,
    /// Last counters of earlier processes.
    former: BTreeMap<String, Counts>,
}

/// Counters of a disk that are summed over its processes. Latencies cannot be added: they are those
/// of the last process that has any.
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
    /// Adds one sample.
    pub fn sample(&mut self, stats: &Stats) {
        if stats.pid != self.pid {
            // A new process starts its counters at zero.
            for (id, counts) in std::mem::take(&mut self.last) {
                self.former.entry(id).or_default().add(&counts);
            }
            (self.pid, self.last_uptime_seconds) = (stats.pid, 0.0);
        }
        let passed = (stats.uptime_seconds - self.last_uptime_seconds).max(0.0);
        self.last_uptime_seconds = stats.uptime_seconds;
        // An invalid number from outside must not panic.
        let passed = Duration::try_from_secs_f64(passed).unwrap_or_default();
        for disk in &stats.disks {
            let counts = Counts::of(disk);
            let before = self.last.insert(disk.id.clone(), counts).unwrap_or_default();
            if disk.requests.total() > before.requests.total() {
                *self.busy.entry(disk.id.clone()).or_default() += passed;
            }
        }
    }

    /// Adds the counters of earlier processes to `stats`. Requests after their last sample are
    /// missing.
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

    /// Returns the requests per second while the disk was busy, for `requests` in total; 0 for a
    /// disk that was never busy.
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
            start: None,
            reactors_reason: None,
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
