//! A set of small numbers, one bit each.

/// Set of numbers below a limit, such as the clusters of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitSet {
    words: Vec<u64>,
    limit: u64,
}

impl BitSet {
    /// Creates an empty set of numbers below `limit`. It takes `limit / 8` bytes.
    pub fn new(limit: u64) -> Self {
        // A disk has at most 2^28 clusters here.
        Self { words: vec![0; limit.div_ceil(64) as usize], limit }
    }

    /// Returns the limit of the numbers.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Adds a number. Those from the limit on are left out.
    pub fn insert(&mut self, number: u64) {
        if number < self.limit
            && let Some(word) = self.words.get_mut((number / 64) as usize)
        {
            *word |= 1 << (number % 64);
        }
    }

    /// Returns whether the set has a number.
    pub fn contains(&self, number: u64) -> bool {
        let word = self.words.get((number / 64) as usize);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Returns the count of numbers.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the first number of the set from `from` on, below `end`.
    pub fn next(&self, from: u64, end: u64) -> Option<u64> {
        let mut at = from;
        while at < end.min(self.limit) {
            let word = self.words.get((at / 64) as usize)? >> (at % 64);
            if word != 0 {
                return Some(at + u64::from(word.trailing_zeros())).filter(|found| *found < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Returns the numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let next = |at: &u64| self.next(at + 1, self.limit);
        std::iter::successors(self.next(0, self.limit), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_added() {
        let mut set = BitSet::new(200);
        for number in [0, 63, 64, 130, 199, 200, u64::MAX] {
            set.insert(number);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 130, 199]);
        assert_eq!((set.count(), set.contains(130), set.contains(131)), (5, true, false));
        assert_eq!((set.next(65, 130), set.next(65, 131)), (None, Some(130)));
        assert!(!set.contains(u64::MAX) && BitSet::new(0).iter().next().is_none());
    }
}
