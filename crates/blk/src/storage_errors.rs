//! Record of requests that failed because of the storage, for reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use disk::IoError;

/// Requests that failed because of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageErrors {
    /// Number of requests.
    pub count: u64,
    /// Error of the last one.
    pub last: IoError,
    /// Time of the last one.
    pub at: SystemTime,
}

/// Record of one queue. Its reactor writes it when a request fails; others read it.
#[derive(Debug, Default)]
pub(crate) struct StorageErrorRecord {
    count: AtomicU64,
    last: Mutex<Option<(SystemTime, IoError)>>,
}

impl StorageErrorRecord {
    /// Records an error now. Returns the number of errors with it.
    #[cold]
    pub(crate) fn record(&self, error: IoError) -> u64 {
        *self.lock() = Some((SystemTime::now(), error));
        self.count.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the errors of these records, if there are any.
    pub(crate) fn sum<'a>(records: impl Iterator<Item = &'a Self>) -> Option<StorageErrors> {
        let all = records.filter_map(|record| {
            let (at, last) = (*record.lock())?;
            Some(StorageErrors { count: record.count.load(Ordering::Relaxed), last, at })
        });
        all.reduce(|one, other| {
            let later = if other.at > one.at { other } else { one };
            StorageErrors { count: one.count + other.count, ..later }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(SystemTime, IoError)>> {
        // Each change is a single step, so a panic elsewhere leaves it complete.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_and_the_latest_error_is_kept() {
        let records: [StorageErrorRecord; 3] = Default::default();
        assert_eq!(StorageErrorRecord::sum(records.iter()), None);
        records[2].record(IoError::Short);
        let io = IoError::Storage(rustix::io::Errno::IO);
        assert_eq!((records[0].record(io), records[0].record(io)), (1, 2));
        let sum = StorageErrorRecord::sum(records.iter()).unwrap();
        assert_eq!((sum.count, sum.last), (3, io));
    }
}
