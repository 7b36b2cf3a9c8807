//! Why a device cannot be opened, a queue goes on no more, or a frame was not taken.

use reactor::tun::{NAME_BYTES_MAX, PATH};
use rustix::io::Errno;

use crate::QUEUES_MAX;

/// Why a TAP device cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// No device can have this name.
    #[error(
        "`{0}` is no name of a TAP device: 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-` or `_`, \
         the first a letter or digit"
    )]
    Name(String),
    /// So many queues cannot be had.
    #[error("{0} queues of a TAP device: 1 to {QUEUES_MAX} are possible")]
    Queues(usize),
    /// The kernel has no TUN driver, or it is hidden.
    #[error("{PATH} is not there: load the kernel's module tun, or let this container have it")]
    NoDriver,
    /// The driver is too old.
    #[error("the kernel's TUN driver has no {0}")]
    Lacks(&'static str),
    /// This process may not.
    #[error(
        "no permission to {doing}: run as root or with CAP_NET_ADMIN, or let this user have \
         {PATH} and a device of its own (ip tuntap add dev {name} mode tap multi_queue vnet_hdr \
         user USER)"
    )]
    Denied {
        /// What was tried.
        doing: &'static str,
        /// Name of the device.
        name: String,
    },
    /// The device should be there.
    #[error(
        "there is no network device {0} (ip tuntap add dev {0} mode tap multi_queue vnet_hdr \
         makes one)"
    )]
    NotThere(String),
    /// The device should not be there.
    #[error("a network device {0} is there already")]
    Exists(String),
    /// Something else has the name.
    #[error("network device {0} is no TAP device")]
    NotTap(String),
    /// The device was made with one queue.
    #[error(
        "TAP device {0} was made with one queue only; delete it (ip link del {0}) and make it \
         again (ip tuntap add dev {0} mode tap multi_queue vnet_hdr)"
    )]
    OneQueue(String),
    /// Somebody has it.
    #[error("TAP device {0} is in use by another process")]
    InUse(String),
    /// The kernel refuses.
    #[error("cannot {doing} {name}: {errno}")]
    Refused {
        /// What was tried.
        doing: &'static str,
        /// Name of the device.
        name: String,
        /// Why.
        errno: Errno,
    },
}

/// Why a queue goes on no more. Told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The device was deleted.
    #[error("the TAP device was deleted")]
    Gone,
    /// Nothing but errors has come for long: the last one.
    #[error("reading the TAP device fails each time: {0}")]
    Failed(Errno),
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The device is down.
    #[error("the TAP device is down")]
    Down,
    /// The kernel has no room.
    #[error("the kernel has no room for the frame")]
    Full,
    /// The kernel takes no such frame: its header does not fit it, or it is too short.
    #[error("the kernel takes no such frame: {0}")]
    Refused(Errno),
    /// The queue has failed.
    #[error("the TAP device's queue has failed")]
    Gone,
}

impl SendError {
    pub(crate) fn of(errno: Errno) -> Self {
        match errno {
            Errno::IO => Self::Down,
            Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS => Self::Full,
            Errno::BADFD => Self::Gone,
            other => Self::Refused(other),
        }
    }
}
