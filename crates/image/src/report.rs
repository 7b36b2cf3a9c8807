//! Reports on images: what a check has found.

use crate::ImageError;

/// Most faults that a report lists; all are counted.
const MAX_LISTED: usize = 100;

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Number of faults through which data is or can be lost.
    pub errors: u64,
    /// Number of clusters of the file that nothing uses.
    pub leaks: u64,
    /// The first 100 faults.
    pub faults: Vec<Fault>,
    /// Number of clusters of the disk that have a cluster of the file, or compressed data.
    pub allocated_clusters: u64,
    /// Number of these that are compressed.
    pub compressed_clusters: u64,
    /// Number of clusters of the disk.
    pub clusters: u64,
    /// Number of leaks that a repair has repaired before this check.
    pub repaired_leaks: u64,
    /// Number of marks as copied that it has corrected.
    pub repaired_marks: u64,
    /// Number of errors that are wrong marks as copied, which follow from right refcounts.
    pub(crate) wrong_marks: u64,
}

/// Fault of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Whether it only wastes space.
    pub is_leak: bool,
    /// Broken rule.
    pub problem: String,
}

impl CheckReport {
    /// Returns whether the image has neither errors nor leaks.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.leaks == 0
    }

    pub(crate) fn error(&mut self, offset: u64, problem: impl FnOnce() -> String) {
        self.errors += 1;
        self.add(offset, false, problem);
    }

    pub(crate) fn leak(&mut self, offset: u64, problem: impl FnOnce() -> String) {
        self.leaks += 1;
        self.add(offset, true, problem);
    }

    fn add(&mut self, offset: u64, is_leak: bool, problem: impl FnOnce() -> String) {
        if self.faults.len() < MAX_LISTED {
            self.faults.push(Fault { offset, is_leak, problem: problem() });
        }
    }

    /// Notes a damaged table as a fault.
    ///
    /// # Errors
    /// Every other error ends the check.
    pub(crate) fn note<T>(
        &mut self,
        result: Result<T, ImageError>,
    ) -> Result<Option<T>, ImageError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(ImageError::Corrupt { structure, offset, problem }) => {
                self.error(offset, || format!("{structure}: {problem}"));
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
}
