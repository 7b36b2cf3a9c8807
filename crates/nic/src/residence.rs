//! Residence time of frames, from their sender's ring to their receiver's, measured once a batch.

use reactor::Histogram;

/// Most batches of senders that are distinguished in one batch of a receiver; frames of more count
/// with the last one.
const RUNS: usize = 8;

/// Frames that a receiver got in this batch, by the time at which they were popped from their
/// sender's ring.
#[derive(Debug, Default)]
pub(crate) struct ResidenceBatch {
    /// Times in nanoseconds, and the number of frames for each.
    runs: [(u64, u64); RUNS],
    len: usize,
}

impl ResidenceBatch {
    /// Adds a delivered frame that was popped from its sender's ring at `since_ns`.
    pub(crate) fn add(&mut self, since_ns: u64) {
        let last = self.len.checked_sub(1).and_then(|at| self.runs.get_mut(at));
        match last {
            Some((since, count)) if *since == since_ns || self.len == RUNS => *count += 1,
            _ => {
                if let Some(place) = self.runs.get_mut(self.len) {
                    *place = (since_ns, 1);
                    self.len += 1;
                }
            }
        }
    }

    /// Records the times of all frames, which are published to their receiver at `now_ns`.
    pub(crate) fn end(&mut self, now_ns: u64, times: &Histogram) {
        for (since, count) in self.runs.iter().take(self.len) {
            times.record(now_ns.saturating_sub(*since), *count);
        }
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use reactor::Snapshot;

    use super::*;

    #[test]
    fn frames_of_one_batch_share_their_time_and_none_is_lost() {
        let (times, mut batch) = (Histogram::default(), ResidenceBatch::default());
        let read = |times: &Histogram| {
            let mut all = Snapshot::default();
            all.add(times);
            (all.count(), all.sum_ns())
        };
        (0..5).for_each(|_| batch.add(1_000));
        batch.add(3_000);
        batch.end(11_000, &times);
        assert_eq!(read(&times), (6, 5 * 10_000 + 8_000));
        batch.end(99_000, &times);
        assert_eq!(read(&times).0, 6, "each is counted once");
        (0..100).for_each(|since| batch.add(since));
        // A sender's clock may have been read later than the receiver's.
        batch.add(u64::MAX);
        batch.end(50, &times);
        assert_eq!(read(&times).0, 6 + 101);
    }
}
