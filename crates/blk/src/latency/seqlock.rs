//! A sequence lock: one thread writes a few words, others read them consistently without blocking
//! it.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Attempts of a reader while the writer interferes. A write takes nanoseconds. More attempts would
/// only help against a writer that was preempted in the middle.
const READ_TRIES: usize = 64;

/// `N` words that are read consistently.
#[derive(Debug)]
pub(crate) struct SeqLock<const N: usize> {
    /// Odd during a write, 0 before the first write.
    version: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Default for SeqLock<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> SeqLock<N> {
    pub(crate) const fn new() -> Self {
        Self { version: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; N] }
    }

    /// Writes the words. Only the owning thread may call it.
    pub(crate) fn write(&self, words: [u64; N]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees a new word also sees the odd version.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the words of one write; `None` before the first, or if the writer kept interfering.
    pub(crate) fn read(&self) -> Option<[u64; N]> {
        for _ in 0..READ_TRIES {
            let before = self.version.load(Ordering::Acquire);
            if before == 0 {
                return None;
            }
            let mut words = [0; N];
            for (word, place) in words.iter_mut().zip(&self.words) {
                *word = place.load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return Some(words);
            }
            std::hint::spin_loop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn what_is_read_was_written_at_once() {
        let lock = SeqLock::<8>::default();
        assert_eq!(lock.read(), None);
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0u64;
                while !end.load(Ordering::Relaxed) {
                    let Some(words) = lock.read() else { continue };
                    assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
                    assert!(words[0] >= seen, "older than what was seen before");
                    seen = words[0];
                }
            });
            for value in 1..=200_000 {
                lock.write([value; 8]);
            }
            end.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(lock.read(), Some([200_000; 8]));
    }
}
