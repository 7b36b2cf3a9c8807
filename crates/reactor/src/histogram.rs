//! Histogram of durations with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets in each power of two. Neighbours are at most 6.25% apart, so a value read back is within
/// 3.2%.
const STEPS: u64 = 16;
/// Durations below 2^10 ns, about a microsecond, share the first bucket.
const FIRST_BIT: u32 = 10;
/// Durations from 2^40 ns on, about 18 minutes, share the last bucket.
const LAST_BIT: u32 = 40;
const BUCKETS: usize = ((LAST_BIT - FIRST_BIT) as u64 * STEPS) as usize + 1;

/// Histogram of durations in nanoseconds.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = [const { AtomicU64::new(0) }; BUCKETS];
        Self { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }
}

/// Summary of a histogram, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of recorded values.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest value.
    pub max_ns: u64,
}

fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FIRST_BIT {
        return 0;
    }
    let bit = 63 - ns.leading_zeros();
    let step = (ns >> (bit - 4)) & (STEPS - 1);
    let octave = u64::from(bit - FIRST_BIT);
    (1 + (octave * STEPS + step) as usize).min(BUCKETS - 1)
}

/// Returns the middle of a bucket.
fn value_of(bucket: usize) -> u64 {
    let Some(bucket) = (bucket as u64).checked_sub(1) else { return 1 << (FIRST_BIT - 1) };
    let (octave, step) = (bucket / STEPS, bucket % STEPS);
    let width = 1u64 << (octave + u64::from(FIRST_BIT) - 4);
    (STEPS + step) * width + width / 2
}

impl Histogram {
    /// Records `count` durations of `ns` nanoseconds. Only the owning thread may call this.
    pub fn record(&self, ns: u64, count: u64) {
        let add = |to: &AtomicU64, by: u64| {
            // With one writer, no read-modify-write is needed.
            to.store(to.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        };
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            add(bucket, count);
        }
        add(&self.sum, ns.wrapping_mul(count));
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.store(ns, Ordering::Relaxed);
        }
    }

    /// Returns the median in nanoseconds; 0 without values. Allocates nothing, so the writer may
    /// call it too.
    pub fn median_ns(&self) -> u64 {
        let read = |bucket: &AtomicU64| bucket.load(Ordering::Relaxed);
        let count: u64 = self.buckets.iter().map(read).sum();
        percentile(self.buckets.iter().map(read), count, 500)
    }
}

/// Returns the middle of the bucket that contains the `permille` quantile.
fn percentile(buckets: impl Iterator<Item = u64>, count: u64, permille: u64) -> u64 {
    if count == 0 {
        return 0;
    }
    let target = (u128::from(count) * u128::from(permille)).div_ceil(1000) as u64;
    let mut seen = 0;
    let mut at = 0;
    for (index, bucket) in buckets.enumerate() {
        seen += bucket;
        at = index;
        if seen >= target.max(1) {
            break;
        }
    }
    value_of(at)
}

/// Sum of the counts of one or more histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    buckets: Box<[u64]>,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS].into(), sum_ns: 0, max_ns: 0 }
    }
}

impl Snapshot {
    /// Adds the current counts of `one`.
    pub fn add(&mut self, one: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&one.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        self.sum_ns = self.sum_ns.wrapping_add(one.sum.load(Ordering::Relaxed));
        self.max_ns = self.max_ns.max(one.max.load(Ordering::Relaxed));
    }

    /// Returns the number of recorded values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all values in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the number of values up to `ns`. A bucket that spans `ns` counts if its middle is at
    /// most `ns`.
    pub fn count_up_to(&self, ns: u64) -> u64 {
        let below = |at: &usize| value_of(*at) <= ns;
        self.buckets.iter().enumerate().take_while(|(at, _)| below(at)).map(|(_, n)| n).sum()
    }

    /// Returns count, percentiles and maximum.
    pub fn summary(&self) -> Summary {
        let count = self.count();
        let at =
            |permille| percentile(self.buckets.iter().copied(), count, permille).min(self.max_ns);
        Summary {
            count,
            p50_ns: at(500),
            p90_ns: at(900),
            p99_ns: at(990),
            p999_ns: at(999),
            max_ns: self.max_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_within_the_resolution() {
        for shift in FIRST_BIT..LAST_BIT {
            for ns in [1u64 << shift, (1 << shift) + (1 << shift) / 3, (2 << shift) - 1] {
                let back = value_of(bucket_of(ns));
                assert!(back.abs_diff(ns) * 100 <= ns * 4, "{ns} came back as {back}");
            }
        }
        assert_eq!((bucket_of(0), bucket_of(1023), bucket_of(1024)), (0, 0, 1));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << LAST_BIT) - 1), BUCKETS - 1);
    }

    #[test]
    fn buckets_are_in_order() {
        let values: Vec<_> = (0..BUCKETS).map(value_of).collect();
        assert!(values.is_sorted());
        for (at, value) in values.iter().enumerate() {
            assert_eq!(bucket_of(*value), at);
        }
    }

    #[test]
    fn percentiles_and_sums() {
        let one = Histogram::default();
        assert_eq!(Snapshot::default().summary(), Summary::default());
        assert_eq!(one.median_ns(), 0);
        for us in 1..=1000 {
            one.record(us * 1000, 1);
        }
        let mut all = Snapshot::default();
        all.add(&one);
        let summary = all.summary();
        assert_eq!((summary.count, summary.max_ns), (1000, 1_000_000));
        assert_eq!(all.sum_ns(), 500_500_000);
        assert!(summary.p50_ns.abs_diff(500_000) < 25_000, "{summary:?}");
        assert!(summary.p90_ns.abs_diff(900_000) < 40_000, "{summary:?}");
        assert!(summary.p99_ns.abs_diff(990_000) < 40_000, "{summary:?}");
        assert!(summary.p999_ns.abs_diff(999_000) < 40_000, "{summary:?}");
        assert!(one.median_ns().abs_diff(500_000) < 25_000);
        assert!(all.count_up_to(100_000).abs_diff(100) <= 4);
        assert_eq!(all.count_up_to(u64::MAX), 1000);
        all.add(&one);
        assert_eq!(all.count(), 2000);
    }
}
