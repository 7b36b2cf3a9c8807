//! Errors of disks.

use std::path::PathBuf;
use std::time::Duration;

use disk::DiskError;
use vhost_user::{SocketError, StateError};

use super::{NbdExportError, StuckError};
use crate::keeper_client::PreserveError;
use crate::open_disk::OpenError;

/// Reason why a disk is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServedDiskError {
    /// The disk has another backend than the caller expects.
    #[error("the backend is {present}, not {expected}; see `stats` for the present one")]
    OtherBackend {
        /// Present backend.
        present: String,
        /// Expected backend.
        expected: String,
    },
    /// A new backend does not have the properties that guests know.
    #[error(
        "the new backend has {found}, and the guest knows {known}; give one with the same content"
    )]
    OtherGeometry {
        /// Size and block size of the new backend.
        found: String,
        /// Size and block size that the guest knows.
        known: String,
    },
    /// A spec is invalid.
    #[error(transparent)]
    Spec(#[from] model::spec::SpecError),
    /// The image of a snapshot cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// Path of the image.
        path: PathBuf,
        /// Cause.
        source: image::ImageError,
    },
    /// Error of the disk itself.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The disk cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Error of its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its storage hangs.
    #[error(transparent)]
    Stuck(StuckError),
    /// Its storage hung while it was opened, so nothing has begun.
    #[error(
        "{place} cannot be opened: its storage has not answered within {} ms; mend the storage \
         and try again", deadline.as_millis()
    )]
    OpenHangs {
        /// Name of the storage.
        place: String,
        /// Duration of the wait.
        deadline: Duration,
    },
    /// I/O of a former process has not ended.
    #[error(
        "{place} cannot be served yet: the kernel has not ended all I/O of a process, or of a \
         disk of this name, that served it before, within {seconds} s; mend the storage, and try \
         again"
    )]
    FenceHeld {
        /// Name of the storage.
        place: String,
        /// Duration of the wait in seconds.
        seconds: u64,
    },
    /// Its storage has hung since an earlier verb.
    #[error(
        "{verb}: the disk is stuck: {requests} requests have been with the storage of {place} for \
         {seconds} s after their deadline; mend the storage, and try again when `stats` shows the \
         disk without `stuck`"
    )]
    StillStuck {
        /// Refused verb.
        verb: &'static str,
        /// Name of the storage.
        place: String,
        /// Number of requests that were abandoned to the kernel.
        requests: u64,
        /// Time since the deadline in seconds.
        seconds: u64,
    },
    /// The wait for the fence was cancelled: the disk is being detached, or the process ends.
    #[error("cancelled the wait for I/O on {place} of a process that served this disk before")]
    FenceGivenUp {
        /// Name of the storage.
        place: String,
    },
    /// Error of an NBD export.
    #[error(transparent)]
    Nbd(#[from] NbdExportError),
    /// The disk has no writes that could be discarded.
    #[error("{place} is no overlay, so its writes last; attach the disk with an overlay")]
    NoOverlay {
        /// Name of the storage.
        place: String,
    },
    /// The new tree lacks the writes of the present one.
    #[error(
        "the writes of the disk are in its overlay, and the new backend has none; give an overlay, or \
         detach the disk, which loses the writes"
    )]
    OverlayLost,
    /// The disk no longer exists here.
    #[error("the disk no longer exists")]
    Gone,
    /// The keeper does not preserve the disk, so no successor would restore it.
    #[error(transparent)]
    Hold(Box<PreserveError>),
    /// Another file or device is at the image's path.
    #[error(
        "{} is another file than the one that was attached; put that back and activate the disk, \
         or detach it and attach this one", path.display()
    )]
    Replaced {
        /// Path of the image.
        path: std::path::PathBuf,
    },
    /// The image became smaller while no process served it.
    #[error(
        "the image has {found} bytes, and guests were told {size}; restore its size and activate \
         the disk, or detach and attach it again"
    )]
    Shrunk {
        /// Present size in bytes.
        found: u64,
        /// Size in bytes that guests were told.
        size: u64,
    },
    /// The disk cannot be quiesced, because its storage takes too long.
    #[error(
        "the storage of {place} has not ended the requests in flight in time, and no other \
         process may serve before it has; `stats` shows them"
    )]
    NotDrained {
        /// Name of the storage.
        place: String,
    },
    /// The last writes cannot become durable before there is room.
    #[error(
        "the storage of {place} is full: a flush waits for room, which did not come in time; make \
         room, and try again"
    )]
    FlushWaits {
        /// Name of the storage.
        place: String,
    },
    /// The next process does not know the disk's backend.
    #[error(
        "its backend is {backend}, and the new worker reads disk records up to format {record}, \
         which have no such backends; detach the disk, or upgrade to a newer version"
    )]
    TreeUnknown {
        /// Tree of the disk.
        backend: String,
        /// Newest format that both sides know.
        record: u32,
    },
    /// The next process knows no disks without a socket.
    #[error(
        "it has no socket, and the new worker reads disk records up to format {record}, in which \
         every disk has one; detach the disk, or upgrade to a newer version"
    )]
    NoSocketUnknown {
        /// Newest format that both sides know.
        record: u32,
    },
    /// The next process knows no shares of a storage.
    #[error(
        "it has a weight or floors, and the new worker reads disk records up to format {record}, which \
         have none; take them off (ringway io disk.weight id=...), or upgrade to a newer version"
    )]
    ShareUnknown {
        /// Newest format that both sides know.
        record: u32,
    },
    /// The disk cannot be quiesced.
    #[error("{reason}")]
    NoStand {
        /// Reason for that.
        reason: String,
    },
    /// A session cannot continue from its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The process cannot create more threads or descriptors.
    #[error("cannot {action}")]
    Os {
        /// Action that failed.
        action: &'static str,
        /// Error of the kernel.
        #[source]
        source: std::io::Error,
    },
}

impl ServedDiskError {
    /// Returns whether the error passes by itself, when storage answers or the process has free
    /// resources.
    pub(crate) fn is_passing(&self) -> bool {
        use rustix::io::Errno;
        match self {
            Self::OpenHangs { .. }
            | Self::Stuck(_)
            | Self::StillStuck { .. }
            | Self::FenceHeld { .. }
            | Self::Hold(_)
            | Self::Os { .. } => true,
            Self::Open(error) => matches!(
                error.errno(),
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::STALE)
            ),
            _ => false,
        }
    }
}
