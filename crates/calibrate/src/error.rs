//! Reasons why a storage cannot be measured.

use std::path::PathBuf;

use disk::{DiskError, IoError};
use rustix::io::Errno;
use share::ShareError;

/// Failure of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The path is neither a folder nor a block device.
    #[error(
        "{path} is a file; name its folder, where a scratch file is written and removed, or a block \
         device"
    )]
    IsFile {
        /// Path that the caller gave.
        path: PathBuf,
    },
    /// Another measurement of it is running.
    #[error(
        "another measurement of {path} is running, or a program has locked it; wait for its end"
    )]
    Busy {
        /// Path that the caller gave.
        path: PathBuf,
    },
    /// A system call on the storage failed.
    #[error("cannot {action} {path}")]
    Os {
        /// Action that failed.
        action: &'static str,
        /// Path that the caller gave.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Errno,
    },
    /// The storage has too little free space for a scratch file.
    #[error(
        "{path} has {free} free bytes; a measurement writes at least {needed} bytes and leaves three \
         quarters of the free space"
    )]
    NoSpace {
        /// Path that the caller gave.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Bytes of the smallest scratch file.
        needed: u64,
    },
    /// The storage has no direct I/O.
    #[error("{path} has no direct I/O, so the memory of this host would be measured")]
    NoDirect {
        /// Path that the caller gave.
        path: PathBuf,
    },
    /// The block device is too small.
    #[error("{path} has {size} bytes; a measurement needs at least {needed}")]
    Small {
        /// Path that the caller gave.
        path: PathBuf,
        /// Bytes of the device.
        size: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// The disk cannot be opened or locked.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A request failed.
    #[error("a request of {bytes} bytes to {path} failed")]
    Request {
        /// Path that the caller gave.
        path: PathBuf,
        /// Bytes of the request.
        bytes: u32,
        /// Cause.
        #[source]
        source: IoError,
    },
    /// The results make no profile.
    #[error(transparent)]
    Profile(#[from] ShareError),
    /// The profile cannot be stored.
    #[error("cannot store the profile in {path}")]
    Store {
        /// Folder of the profile.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// No memory or no thread is available.
    #[error("cannot start the measurement")]
    Start(#[source] std::io::Error),
    /// The caller stopped the measurement.
    #[error("the measurement was stopped")]
    Stopped,
    /// The storage did not answer.
    #[error("{path} has not answered a request for {seconds} s; check the storage")]
    Hangs {
        /// Path that the caller gave.
        path: PathBuf,
        /// Seconds without an answer.
        seconds: u64,
    },
}

impl CalibrateError {
    /// Returns the conversion of an error of a system call.
    pub(crate) fn os(action: &'static str, path: &std::path::Path) -> impl Fn(Errno) -> Self {
        move |source| Self::Os { action, path: path.into(), source }
    }
}
