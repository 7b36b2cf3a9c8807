//! Number of frames to read at once.

/// Most reads at once. Beyond this number a system call is a small part of the cost of the frames.
pub(crate) const BATCH_MAX: usize = 32;

/// Size of the next batch of reads. It is one more than the frames of the last batch, so that the
/// same call finds the end. If the last batch found no end, it doubles.
#[derive(Debug)]
pub(crate) struct ReadBatch {
    next: usize,
}

impl Default for ReadBatch {
    fn default() -> Self {
        Self { next: 2 }
    }
}

impl ReadBatch {
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// Adjusts the size after a batch of `asked` reads that returned `received` frames.
    pub(crate) fn ended(&mut self, asked: usize, received: usize) {
        let next = if received < asked { received + 1 } else { asked * 2 };
        self.next = next.clamp(1, BATCH_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_comes() {
        let mut batch = ReadBatch::default();
        let mut asked = Vec::new();
        for there in [100_usize, 100, 100, 100, 100, 100, 3, 3, 0, 0, 1, 1] {
            asked.push(batch.next());
            let received = there.min(batch.next());
            batch.ended(batch.next(), received);
        }
        assert_eq!(asked, [2, 4, 8, 16, 32, 32, 32, 4, 4, 1, 1, 2]);
    }
}
