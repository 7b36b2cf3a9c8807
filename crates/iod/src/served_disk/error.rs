//! Why a disk is not served.

use std::time::Duration;

use disk::DiskError;
use vhost_user::{SocketError, StateError};

use super::{NbdExportError, StuckError};
use crate::keeper_client::PreserveError;
use crate::open_disk::OpenError;

/// Why a disk is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServedDiskError {
    /// The disk itself.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its storage hangs.
    #[error(transparent)]
    Stuck(StuckError),
    /// Its storage hangs before anything was begun.
    #[error(
        "{place} cannot be opened: its storage has not answered within {} ms; mend the storage \
         and try again", deadline.as_millis()
    )]
    OpenHangs {
        /// The storage.
        place: String,
        /// How long it was waited for.
        deadline: Duration,
    },
    /// I/O from before has not ended.
    #[error(
        "{place} cannot be served yet: the kernel has not ended all I/O of a process, or of a disk \
         of this name, that served it before, and it was waited for for {seconds} s; mend the \
         storage, and try again"
    )]
    FenceHeld {
        /// The storage.
        place: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Its storage has hung since an earlier verb.
    #[error(
        "{verb}: the disk is stuck: {requests} requests have been with the storage of {place} for \
         {seconds} s after their deadline; mend the storage, and try again when `stats` shows the \
         disk without `stuck`"
    )]
    StillStuck {
        /// What was asked for.
        verb: &'static str,
        /// The storage.
        place: String,
        /// Requests that were left with the kernel.
        requests: u64,
        /// Since the deadline.
        seconds: u64,
    },
    /// Detached, or the process ends.
    #[error("gave up waiting for I/O on {place} of a process that served this disk before")]
    FenceGivenUp {
        /// The storage.
        place: String,
    },
    /// Its NBD exports, or one that is wanted.
    #[error(transparent)]
    Nbd(#[from] NbdExportError),
    /// Nothing is known of it any more.
    #[error("the disk is gone")]
    Gone,
    /// Nobody would bring it back.
    #[error(transparent)]
    Hold(Box<PreserveError>),
    /// Another file or device is at the image's path.
    #[error(
        "{} is another file than the one that was attached; put that back and activate the disk, \
         or detach it and attach this one", path.display()
    )]
    Replaced {
        /// The image's path.
        path: std::path::PathBuf,
    },
    /// The image became smaller while nobody served it.
    #[error(
        "the image has {found} bytes, and guests were told {size}; give it back its size and \
         activate the disk, or detach and attach it again"
    )]
    Shrunk {
        /// Its size now, in bytes.
        found: u64,
        /// The size that guests were told, in bytes.
        size: u64,
    },
    /// It cannot stand still: storage takes too long.
    #[error(
        "the storage of {place} has not ended the requests in flight in time, and nobody else may \
         go on before it has; `stats` shows them"
    )]
    NotDrained {
        /// Where the bytes are.
        place: String,
    },
    /// It does not stand still.
    #[error("{reason}")]
    NoStand {
        /// Why.
        reason: String,
    },
    /// A session cannot go on from its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The process can have no more threads or descriptors.
    #[error("cannot {action}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
}

impl ServedDiskError {
    /// It ends by itself, when storage answers or the process has room again.
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
