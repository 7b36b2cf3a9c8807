//! A latency histogram with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets in each power of two: neighbours are at most 6.25% apart, so a value read back is
/// within 3.2%.
const STEPS: u64 = 16;
/// Values from here on share the last bucket: about 18 minutes.
const OCTAVES: u64 = 40;
const BUCKETS: usize = (OCTAVES * STEPS) as usize;

/// Counts of nanoseconds.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, max: AtomicU64::new(0) }
    }
}

/// What a histogram says, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Values recorded.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

fn bucket_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    // Position of the highest bit, and the four bits below it.
    let octave = u64::from(63 - ns.leading_zeros()) - 3;
    let step = (ns >> (octave - 1)) & (STEPS - 1);
    ((octave * STEPS + step) as usize).min(BUCKETS - 1)
}

/// Middle of a bucket.
fn value_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let (octave, step) = (bucket / STEPS, bucket % STEPS);
    let low = (STEPS + step) << (octave - 1);
    low + (1u64 << (octave - 1)) / 2
}

impl Histogram {
    /// Records `count` values of `ns`. Only the owning thread may call it.
    pub fn record(&self, ns: u64, count: u64) {
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            // One writer: no read-modify-write is needed.
            bucket.store(bucket.load(Ordering::Relaxed) + count, Ordering::Relaxed);
        }
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.store(ns, Ordering::Relaxed);
        }
    }

    /// Sums up several histograms.
    pub fn summarize<'a>(all: impl Iterator<Item = &'a Histogram>) -> Summary {
        let mut sums = vec![0u64; BUCKETS];
        let mut max_ns = 0;
        for one in all {
            for (sum, bucket) in sums.iter_mut().zip(&one.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            max_ns = max_ns.max(one.max.load(Ordering::Relaxed));
        }
        let count: u64 = sums.iter().sum();
        let percentile = |percent: u64| {
            let target = (count * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let found = sums.iter().position(|bucket| {
                seen += bucket;
                seen >= target
            });
            found.map_or(0, value_of).min(max_ns)
        };
        Summary { count, p50_ns: percentile(50), p99_ns: percentile(99), max_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_within_the_resolution() {
        for shift in 0..40 {
            for ns in [1u64 << shift, (1 << shift) + (1 << shift) / 3, (2 << shift) - 1] {
                let back = value_of(bucket_of(ns));
                assert!(back.abs_diff(ns) * 100 <= ns * 4, "{ns} came back as {back}");
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles() {
        let one = Histogram::default();
        assert_eq!(Histogram::summarize([&one].into_iter()), Summary::default());
        for us in 1..=1000 {
            one.record(us * 1000, 1);
        }
        let summary = Histogram::summarize([&one].into_iter());
        assert_eq!((summary.count, summary.max_ns), (1000, 1_000_000));
        assert!(summary.p50_ns.abs_diff(500_000) < 25_000, "{summary:?}");
        assert!(summary.p99_ns.abs_diff(990_000) < 40_000, "{summary:?}");
    }
}
