//! Results of a run.

use super::{SECOND, US};

/// Results of one disk.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskReport {
    pub(super) weight: u64,
    /// Bytes and requests completed after the warm-up.
    pub(super) bytes: u64,
    pub(super) requests: u64,
    /// Latencies after the warm-up, in nanoseconds; sorted at the end.
    pub(super) latencies: Vec<u64>,
    /// Longest time in which the disk had requests to dispatch and none was dispatched.
    pub(super) longest_wait: u64,
    /// Device time charged after the warm-up, and whether it had requests to dispatch all the time.
    pub(super) served: u64,
    pub(super) backlogged: bool,
    /// Bytes completed in each bucket of time, from the start.
    pub(super) timeline: Vec<u64>,
}

impl DiskReport {
    /// Returns a percentile of the latencies in nanoseconds.
    pub(super) fn percentile(&self, percent: usize) -> u64 {
        let last = self.latencies.len().checked_sub(1).expect("requests completed");
        self.latencies[(self.latencies.len() * percent / 100).min(last)]
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) disks: Vec<DiskReport>,
    /// Time that was counted, after the warm-up.
    pub(super) counted_ns: u64,
    /// Longest time in which a reactor held the lowest key and dispatched nothing.
    pub(super) starved: u64,
    /// Longest time in which a request was held and tokens were free.
    pub(super) free_tokens: u64,
    /// Lowest and highest depth after the warm-up.
    pub(super) depths: (u64, u64),
    /// Depth at the end.
    pub(super) depth: u64,
    /// Most discards in flight at once.
    pub(super) discards: u64,
    /// Commands that were sent to the device.
    pub(super) commands: u64,
    /// Looks at disks, to find those that go first.
    pub(super) looks: u64,
    pub(super) kicks: u64,
    pub(super) turns: u64,
}

impl Report {
    /// Returns the throughput of these disks in bytes a second.
    pub(super) fn rate(&self, disks: std::ops::Range<usize>) -> f64 {
        let bytes: u64 = self.disks[disks].iter().map(|disk| disk.bytes).sum();
        bytes as f64 * SECOND as f64 / self.counted_ns as f64
    }

    pub(super) fn total(&self) -> f64 {
        self.rate(0..self.disks.len())
    }

    /// Returns highest by lowest share of a weight, over these disks.
    pub(super) fn spread(&self, disks: std::ops::Range<usize>) -> f64 {
        let shares = self.disks[disks].iter().map(|disk| disk.bytes as f64 / disk.weight as f64);
        let (low, high) =
            shares.fold((f64::MAX, 0_f64), |(low, high), one| (low.min(one), high.max(one)));
        high / low
    }

    /// Describes the run in a line.
    pub(super) fn line(&self) -> String {
        let disk = |at: usize| {
            let disk = &self.disks[at];
            format!("p50 {} p99 {} us", disk.percentile(50) / US, disk.percentile(99) / US)
        };
        format!(
            "{:.1} MB/s, spread {:.3}, first {}, starved {} us, free {} us, depth {}-{} us, kicks {}, turns {}",
            self.total() / 1e6,
            self.spread(0..self.disks.len()),
            disk(0),
            self.starved / US,
            self.free_tokens / US,
            self.depths.0 / US,
            self.depths.1 / US,
            self.kicks,
            self.turns,
        )
    }
}
