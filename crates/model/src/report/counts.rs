//! Counts by kind of request, and latency distributions.

use serde::{Deserialize, Serialize};

/// A number for each kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCounts {
    /// Reads (IN).
    pub read: u64,
    /// Writes (OUT).
    pub write: u64,
    /// Flushes (FLUSH).
    pub flush: u64,
    /// Discards (DISCARD).
    pub discard: u64,
    /// Writes of zeroes (WRITE_ZEROES).
    pub write_zeroes: u64,
    /// Requests for the serial number (GET_ID).
    #[serde(default)]
    pub get_id: u64,
}

impl OpCounts {
    /// Adds the numbers of `other`, kind by kind.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.read, other.read),
            (&mut self.write, other.write),
            (&mut self.flush, other.flush),
            (&mut self.discard, other.discard),
            (&mut self.write_zeroes, other.write_zeroes),
            (&mut self.get_id, other.get_id),
        ] {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// Returns the sum over all kinds.
    pub fn total(&self) -> u64 {
        [self.read, self.write, self.flush, self.discard, self.write_zeroes, self.get_id]
            .iter()
            .fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// A latency distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of measured requests.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    #[serde(default)]
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    #[serde(default)]
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
}
