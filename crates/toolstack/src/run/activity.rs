//! For how long each disk was busy, from the counts that the datapath is asked for now and then.
//!
//! Requests by the lifetime of a process say little about a disk that idles most of it. So the
//! counts are sampled, and a disk was busy in a sample's time if it completed something in it.

use std::collections::BTreeMap;
use std::time::Duration;

use model::report::Stats;

/// Time between samples. A burst shorter than this counts as this long: the rate that comes out
/// is a lower bound.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Busy time by disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    busy: BTreeMap<String, Duration>,
    last: BTreeMap<String, u64>,
    last_uptime_seconds: f64,
}

impl Activity {
    /// Takes one sample.
    pub fn sample(&mut self, stats: &Stats) {
        let passed = (stats.uptime_seconds - self.last_uptime_seconds).max(0.0);
        self.last_uptime_seconds = stats.uptime_seconds;
        // A wild number from outside is no reason to end.
        let passed = Duration::try_from_secs_f64(passed).unwrap_or_default();
        for disk in &stats.disks {
            let total = disk.requests.total();
            let before = self.last.insert(disk.id.clone(), total).unwrap_or(0);
            if total > before {
                *self.busy.entry(disk.id.clone()).or_default() += passed;
            }
        }
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
    use model::report::DiskStats;
    use model::spec::Backend;

    fn stats(uptime_seconds: f64, reads: u64) -> Stats {
        let mut disk = DiskStats::new("d", Backend::Null(512), 512);
        disk.requests.read = reads;
        let version = String::new();
        Stats {
            version,
            pid: 1,
            uptime_seconds,
            reactors: Vec::new(),
            disks: vec![disk],
            keeper: None,
        }
    }

    #[test]
    fn idle_times_do_not_count() {
        let mut activity = Activity::default();
        for (uptime, reads) in [(1.0, 0), (2.0, 100), (12.0, 100), (13.0, 300)] {
            activity.sample(&stats(uptime, reads));
        }
        assert!((activity.rate("d", 300) - 150.0).abs() < 1e-6, "{activity:?}");
        assert_eq!(activity.rate("other", 1), 0.0);
    }

    #[test]
    fn wild_clocks_do_no_harm() {
        let mut activity = Activity::default();
        for uptime in [5.0, 1.0, f64::INFINITY, f64::NAN] {
            activity.sample(&stats(uptime, 1));
        }
        assert!(activity.rate("d", 1).is_finite());
    }
}
