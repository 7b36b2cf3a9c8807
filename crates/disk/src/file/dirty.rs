//! Bound of what a guest has written to the page cache and nothing has made durable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes written to the page cache beyond which a write ends only when they are durable. A flush never
/// has to write much more than twice as many: a slow disk does that in less than minutes.
pub(crate) const DIRTY_MAX: u64 = 64 << 20;

/// Count of the bytes that are not durable, over all channels of a disk. A block that was written twice
/// counts twice.
#[derive(Debug, Default)]
pub(crate) struct DirtyBytes {
    /// Bytes written so far, and those of them that are durable.
    written: AtomicU64,
    synced: AtomicU64,
    /// True while a write waits for a sync.
    is_syncing: AtomicBool,
}

impl DirtyBytes {
    /// Returns the bytes written so far. A sync that begins now makes them durable.
    pub(crate) fn mark(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Notes that a sync which began at `mark` has succeeded.
    pub(crate) fn set_synced(&self, mark: u64) {
        self.synced.fetch_max(mark, Ordering::AcqRel);
        self.is_syncing.store(false, Ordering::Release);
    }

    /// Adds bytes that a write has put into the page cache.
    pub(crate) fn add(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns whether the write that has just ended must sync: one does beyond the bound, and each one
    /// beyond twice the bound, so that writers are no faster than the storage.
    pub(crate) fn must_sync(&self) -> bool {
        let dirty = self.count();
        dirty > 2 * DIRTY_MAX || dirty > DIRTY_MAX && !self.is_syncing.swap(true, Ordering::AcqRel)
    }

    /// Returns the bytes that are not durable.
    pub(crate) fn count(&self) -> u64 {
        self.mark().saturating_sub(self.synced.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::conformance::Client;
    use crate::{Disk, FileDisk, FileOptions, OnFull, RequestKind};

    #[test]
    fn a_guest_that_never_flushes_leaves_little_to_flush() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let (path, read_only, direct) = (file.path().into(), false, false);
        let (block_size, on_full) = (None, OnFull::Error);
        let options = FileOptions { path, read_only, direct, block_size, on_full };
        let disk = Arc::new(FileDisk::open(options).unwrap());
        disk.activate().unwrap();
        let dyn_disk: Arc<dyn Disk> = disk.clone();
        let client = Client::new(&dyn_disk);
        let megabyte = vec![1; 1 << 20];
        for at in 0..5 * (DIRTY_MAX >> 20) {
            client.write((at % 8) << 20, megabyte.clone());
            assert!(disk.shared.dirty.count() <= DIRTY_MAX + (1 << 20), "at {at}");
        }
        // Writes of a driver that does not flush are durable at once.
        let before = disk.dirty_mark();
        let durable = RequestKind::Write { durable: true };
        assert_eq!(client.run(durable, 0, 1 << 20, megabyte).0, Ok(()));
        assert_eq!(disk.dirty_mark(), before);
        assert_eq!(client.run(RequestKind::Flush, 0, 0, vec![]).0, Ok(()));
        assert_eq!(disk.shared.dirty.count(), 0);
        assert_eq!(client.read(0, 512), vec![1; 512]);
    }

    #[test]
    fn one_write_syncs_beyond_the_bound_and_each_one_beyond_twice_the_bound() {
        let dirty = DirtyBytes::default();
        dirty.add(DIRTY_MAX);
        assert!(!dirty.must_sync());
        dirty.add(1);
        let mark = dirty.mark();
        assert!(dirty.must_sync());
        assert!(!dirty.must_sync(), "one is enough");
        dirty.add(DIRTY_MAX);
        assert!(dirty.must_sync() && dirty.must_sync());
        dirty.set_synced(mark);
        assert_eq!(dirty.count(), DIRTY_MAX);
        // A sync that began earlier and ended later changes nothing.
        dirty.set_synced(1);
        assert_eq!(dirty.count(), DIRTY_MAX);
    }
}
