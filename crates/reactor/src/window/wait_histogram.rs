//! Histogram of the durations of recent waits.

/// Bucket limits, two per octave from 250 ns to 16 ms. Longer waits are counted separately.
const BUCKETS: usize = 33;
const FIRST_NS: u64 = 250;
/// Waits after which all weights are halved.
const HALF_LIFE: u32 = 64;
/// Weight of a new wait.
const ONE: u64 = 1 << 12;
/// Inverse of the smallest share of waits that must end within a window: fewer are chance.
const LEAST_HITS: u64 = 8;

/// Waits of about the same duration.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    weight: u64,
    /// Weight times nanoseconds.
    time: u64,
}

impl Bucket {
    fn halve(&mut self) {
        self.weight /= 2;
        self.time /= 2;
    }
}

/// Histogram whose old entries decay.
#[derive(Clone, Debug)]
pub(super) struct WaitHistogram {
    buckets: [Bucket; BUCKETS],
    beyond: Bucket,
    until_halved: u32,
}

impl Default for WaitHistogram {
    fn default() -> Self {
        let none = Bucket::default();
        Self { buckets: [none; BUCKETS], beyond: none, until_halved: HALF_LIFE }
    }
}

/// Returns the longest wait of a bucket: 250, 354, 500, 707, 1000 ...
fn edge(bucket: usize) -> u64 {
    let octave = FIRST_NS << (bucket / 2);
    if bucket.is_multiple_of(2) { octave } else { octave * 181 / 128 }
}

impl WaitHistogram {
    pub(super) fn add(&mut self, took_ns: u64) {
        let fits = (0..BUCKETS).find(|bucket| took_ns <= edge(*bucket));
        let bucket = match fits.and_then(|index| self.buckets.get_mut(index)) {
            Some(bucket) => bucket,
            None => &mut self.beyond,
        };
        bucket.weight += ONE;
        bucket.time = bucket.time.saturating_add(took_ns.saturating_mul(ONE));
        self.until_halved -= 1;
        if self.until_halved == 0 {
            self.until_halved = HALF_LIFE;
            self.buckets.iter_mut().for_each(Bucket::halve);
            self.beyond.halve();
        }
    }

    /// Returns the window of at most `max_ns` with the largest gain, among those whose hits cost at
    /// most `price_ns` each. The gain is the price of all hits, less the time spun.
    pub(super) fn best(&self, max_ns: u64, price_ns: u64) -> Option<u64> {
        let all = self.buckets.iter().map(|b| b.weight).sum::<u64>() + self.beyond.weight;
        let (mut hits, mut spun_in_hits) = (0u64, 0u64);
        let mut best = None;
        for (index, bucket) in self.buckets.iter().enumerate() {
            let window = edge(index);
            if window > max_ns {
                break;
            }
            hits += bucket.weight;
            spun_in_hits += bucket.time;
            if bucket.weight == 0 {
                continue;
            }
            // One octave more than the waits need: they vary.
            let spin = (window * 2).min(max_ns);
            let spun = spun_in_hits.saturating_add((all - hits).saturating_mul(spin));
            let worth = hits.saturating_mul(price_ns);
            if hits * LEAST_HITS >= all && spun <= worth {
                let gain = worth - spun;
                if best.is_none_or(|(most, _)| gain > most) {
                    best = Some((gain, spin));
                }
            }
        }
        best.map(|(_, window)| window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_grow_by_half_octaves() {
        assert_eq!([edge(0), edge(1), edge(2), edge(3)], [250, 353, 500, 707]);
        assert_eq!(edge(BUCKETS - 1), 250 << 16);
    }
}
