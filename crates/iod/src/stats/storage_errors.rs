//! Reports of requests that the storage failed.

use model::report::StorageErrors;

/// Converts the errors of a disk to their report type.
pub(super) fn of(errors: blk::StorageErrors) -> StorageErrors {
    let blk::StorageErrors { count, last, at } = errors;
    // A clock that was set back counts as no time.
    let last_seconds_ago = at.elapsed().unwrap_or_default().as_secs_f64();
    StorageErrors { count, last: last.to_string(), last_seconds_ago }
}
