//! Memory allocator that allocates in order and frees in any order.

use std::collections::VecDeque;

/// Most allocations at a time: some turns of a reactor that serves many guests.
pub(crate) const PLACES_MAX: usize = 1024;

/// Allocator of an area: the allocated bytes are one stretch, possibly around the end.
#[derive(Debug)]
pub(crate) struct RingAllocator {
    bytes: usize,
    /// Allocations, oldest first.
    places: VecDeque<Allocation>,
    /// Number of the oldest allocation.
    oldest: u64,
    /// End of the newest allocation.
    end: usize,
}

/// One allocation.
#[derive(Debug)]
struct Allocation {
    at: usize,
    is_free: bool,
}

impl RingAllocator {
    /// Creates an allocator for an area of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, places: VecDeque::with_capacity(PLACES_MAX), oldest: 0, end: 0 }
    }

    /// Returns whether all allocations have been freed.
    pub(crate) fn is_whole(&self) -> bool {
        self.places.is_empty()
    }

    /// Allocates `bytes` bytes, at least one. Returns their position, and the number to free them
    /// by.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<(usize, u64)> {
        if self.places.len() == PLACES_MAX {
            return None;
        }
        let at = self.find(bytes)?;
        let number = self.oldest + self.places.len() as u64;
        self.places.push_back(Allocation { at, is_free: false });
        self.end = at + bytes;
        Some((at, number))
    }

    fn find(&self, bytes: usize) -> Option<usize> {
        let fits = |from: usize, to: usize| (bytes <= to - from).then_some(from);
        match self.places.front() {
            // The memory that was used last is in the caches.
            None => fits(0, self.bytes),
            Some(oldest) if oldest.at < self.end => {
                fits(self.end, self.bytes).or_else(|| fits(0, oldest.at))
            }
            Some(oldest) => fits(self.end, oldest.at),
        }
    }

    /// Frees the allocation with this number.
    pub(crate) fn give_back(&mut self, number: u64) {
        let at = number.checked_sub(self.oldest).and_then(|at| usize::try_from(at).ok());
        if let Some(allocation) = at.and_then(|at| self.places.get_mut(at)) {
            allocation.is_free = true;
        }
        while self.places.front().is_some_and(|allocation| allocation.is_free) {
            self.places.pop_front();
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_never_overlap_and_all_of_them_come_back() {
        const BYTES: usize = 10_000;
        let mut ring_allocator = RingAllocator::new(BYTES);
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut taken: Vec<(usize, usize, u64)> = Vec::new();
        let (mut full, mut most) = (0, 0);
        for _ in 0..50_000 {
            let bytes = 12 + random(1500);
            match ring_allocator.take(bytes) {
                Some((at, number)) => {
                    let free =
                        |&(from, to, _): &(usize, usize, u64)| at + bytes <= from || to <= at;
                    assert!(at + bytes <= BYTES && taken.iter().all(free), "{at} in {taken:?}");
                    taken.push((at, at + bytes, number));
                    most = most.max(taken.len());
                }
                None => full += 1,
            }
            while !taken.is_empty() && random(2) == 0 {
                let at = random(taken.len().min(3));
                ring_allocator.give_back(taken.remove(at).2);
            }
        }
        assert!(full > 100 && most > 10, "{full} {most}");
        taken.drain(..).for_each(|(_, _, number)| ring_allocator.give_back(number));
        assert_eq!(ring_allocator.take(BYTES).map(|(at, _)| at), Some(0));
        assert_eq!(ring_allocator.take(1), None);
    }

    #[test]
    fn frames_are_counted_too() {
        let mut ring_allocator = RingAllocator::new(2 << 20);
        let numbers: Vec<_> = (0..PLACES_MAX).map(|_| ring_allocator.take(1).unwrap().1).collect();
        assert_eq!(ring_allocator.take(1), None);
        // An allocation freed out of order makes room only after all before it are freed.
        ring_allocator.give_back(numbers[1]);
        ring_allocator.give_back(numbers[1]);
        assert_eq!(ring_allocator.take(1), None);
        ring_allocator.give_back(numbers[0]);
        assert!(
            ring_allocator.take(1).is_some()
                && ring_allocator.take(1).is_some()
                && ring_allocator.take(1).is_none()
        );
    }
}
