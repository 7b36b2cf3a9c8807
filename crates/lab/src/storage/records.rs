//! Completions of streams, and the figures computed from them.

use std::time::Duration;

/// Completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    /// End, in nanoseconds since the start of the run.
    pub(super) end_ns: u64,
    /// Latency in nanoseconds.
    pub(super) latency_ns: u64,
}

/// Completions of one stream, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Number of the disk.
    pub(super) disk: usize,
    /// Bytes of a request.
    pub(super) bytes: usize,
    pub(super) done: Vec<Done>,
}

/// Completions of all streams of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) all: Vec<Record>,
    /// Start and end of the measurement, in nanoseconds since the start of the run.
    pub(super) window: (u64, u64),
}

impl Record {
    fn within(&self, (from, until): (u64, u64)) -> &[Done] {
        let index = |ns| self.done.partition_point(|done| done.end_ns < ns);
        self.done.get(index(from)..index(until)).unwrap_or_default()
    }

    /// Returns the bytes a second between the first and the last completion, so that the rate of few
    /// large requests is exact. 0 with fewer than two completions.
    fn rate(&self, window: (u64, u64)) -> f64 {
        match self.within(window) {
            [first, .., last] if last.end_ns > first.end_ns => {
                let count = self.within(window).len() - 1;
                count as f64 * self.bytes as f64 * 1e9 / (last.end_ns - first.end_ns) as f64
            }
            _ => 0.0,
        }
    }
}

impl Records {
    fn of(&self, disk: usize) -> impl Iterator<Item = &Record> {
        self.all.iter().filter(move |record| record.disk == disk)
    }

    /// Returns the bytes a second of a disk within the window.
    pub(super) fn rate(&self, disk: usize) -> f64 {
        self.of(disk).map(|record| record.rate(self.window)).sum()
    }

    /// Returns the bytes of a disk that completed in a period, in nanoseconds since the start.
    pub(super) fn bytes(&self, disk: usize, period: (u64, u64)) -> f64 {
        self.of(disk).map(|record| (record.within(period).len() * record.bytes) as f64).sum()
    }

    /// Returns the requests that completed within the window, over all disks.
    pub(super) fn requests(&self) -> usize {
        self.all.iter().map(|record| record.within(self.window).len()).sum()
    }

    /// Returns the bytes a second of all disks within the window.
    pub(super) fn total(&self) -> f64 {
        let (from, until) = self.window;
        let bytes = |record: &Record| (record.within(self.window).len() * record.bytes) as f64;
        let bytes: f64 = self.all.iter().map(bytes).sum();
        bytes * 1e9 / until.saturating_sub(from).max(1) as f64
    }

    /// Returns the rate of the fastest disk over that of the slowest, of disks with these numbers.
    pub(super) fn max_over_min(&self, disks: impl Iterator<Item = usize>) -> f64 {
        let rates: Vec<f64> = disks.map(|disk| self.rate(disk)).collect();
        let (least, most) =
            rates.iter().fold((f64::MAX, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        // A disk without two completions is that far behind at least.
        most / least.max(most / 1000.0)
    }

    /// Returns a percentile of the latencies of a disk within the window. 0 without requests.
    pub(super) fn percentile(&self, disk: usize, percent: usize) -> Duration {
        let within = self.of(disk).flat_map(|record| record.within(self.window));
        let mut all: Vec<u64> = within.map(|done| done.latency_ns).collect();
        all.sort_unstable();
        let at = (all.len() * percent / 100).min(all.len().saturating_sub(1));
        Duration::from_nanos(all.get(at).copied().unwrap_or(0))
    }
}

/// Returns the most by which a rate is off its weight, in percent of what the weight gives.
pub(super) fn error_percent(rates: &[f64], weights: &[u16]) -> f64 {
    let total = rates.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let sum: f64 = weights.iter().copied().map(f64::from).sum();
    let off = |(rate, weight): (&f64, &u16)| (rate / total * sum / f64::from(*weight) - 1.0).abs();
    rates.iter().zip(weights).map(off).fold(0.0, f64::max) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_the_disk_that_is_furthest_off() {
        let weights = [100, 200, 400, 800];
        assert!(error_percent(&[1.0, 2.0, 4.0, 8.0], &weights) < 1e-9);
        let equal = error_percent(&[1e6; 4], &weights);
        assert!((equal - 275.0).abs() < 1e-9, "{equal}");
    }

    const MS: u64 = 1_000_000;

    /// Returns a stream whose requests end so many milliseconds apart.
    fn record(disk: usize, first_ms: u64, apart_ms: u64, count: u64) -> Record {
        let done = |n| Done { end_ns: (first_ms + n * apart_ms) * MS, latency_ns: (n + 1) * MS };
        Record { disk, bytes: 1000, done: (0..count).map(done).collect() }
    }

    #[test]
    fn rates_are_those_between_completions() {
        let all = vec![record(0, 0, 10, 20), record(1, 3, 20, 20), record(1, 5, 20, 20)];
        let records = Records { all, window: (50 * MS, 150 * MS) };
        // 100 requests a second on disk 0, and twice 50 on disk 1.
        assert_eq!((records.rate(0), records.rate(1), records.rate(2)), (100e3, 100e3, 0.0));
        assert_eq!((records.requests(), records.total()), (20, 200e3));
        assert_eq!(records.max_over_min([0, 1].into_iter()), 1.0);
        assert_eq!(records.max_over_min([0, 2].into_iter()), 1000.0);
        assert_eq!(records.bytes(0, (0, 100 * MS)), 10e3);
    }

    #[test]
    fn percentiles_are_those_of_the_window() {
        let records = Records { all: vec![record(0, 0, 1, 100)], window: (0, 50 * MS) };
        assert_eq!(records.percentile(0, 50), Duration::from_millis(26));
        assert_eq!(records.percentile(0, 99), Duration::from_millis(50));
        assert_eq!(records.percentile(1, 99), Duration::ZERO);
    }
}
