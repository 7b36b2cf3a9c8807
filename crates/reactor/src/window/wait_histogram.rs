//! How long the recent waits took.

/// Edges, two per octave from 250 ns to 16 ms; longer waits are beyond all.
const BUCKETS: usize = 33;
const FIRST_NS: u64 = 250;
/// A wait counts half after this many more.
const HALF_LIFE: u32 = 64;
/// Weight of a wait when it comes.
const ONE: u64 = 1 << 12;
/// Of so many waits one must end within a window: fewer are chance.
const LEAST_HITS: u64 = 8;

/// Waits that took about equally long.
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

/// A histogram that forgets.
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

/// Longest wait of a bucket: 250, 354, 500, 707, 1000 ...
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

    /// The window of at most `max_ns` that gains most, of those whose hits cost at most `price_ns`
    /// each. What is gained is the price for each hit, less the time spun.
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
            // One bucket more than the waits need: they vary.
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
