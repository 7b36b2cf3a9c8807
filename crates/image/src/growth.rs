//! Steps in which the file of an image grows.

/// Smallest step in bytes, unless the disk is smaller.
const LEAST_BYTES: u64 = 1 << 20;
/// Largest step in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Rule for the steps of one file. A file grows by its own size within limits, so that a disk with
/// few writes takes little space, and one with many grows seldom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    most_bytes: u64,
}

impl Growth {
    /// Returns the rule for a disk of `size` bytes, which never needs a larger step than itself.
    pub(crate) fn of_disk(size: u64) -> Self {
        Self::at_most(MOST_BYTES.min(size))
    }

    /// Returns a rule whose steps are at most so many bytes.
    pub(crate) fn at_most(bytes: u64) -> Self {
        Self { most_bytes: bytes }
    }

    /// Returns the step of a file of `len` bytes, if the storage has so much space.
    pub(crate) fn step(self, len: u64) -> u64 {
        len.max(LEAST_BYTES).min(self.most_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_doubles_within_limits() {
        let growth = Growth::of_disk(1 << 40);
        assert_eq!(growth.step(0), 1 << 20);
        assert_eq!(growth.step(3 << 20), 3 << 20);
        assert_eq!(growth.step(1 << 30), 64 << 20);
        assert_eq!(Growth::of_disk(4096).step(0), 4096);
        assert_eq!(Growth::at_most(1).step(1 << 30), 1);
    }
}
