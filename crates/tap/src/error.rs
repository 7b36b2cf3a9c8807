//! Errors: a device that cannot be opened, a queue that failed, a frame that was not sent.

use reactor::tun::{NAME_BYTES_MAX, PATH};
use rustix::io::Errno;

use crate::QUEUES_MAX;

/// Reason why a TAP device cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// The name is not valid for a device.
    #[error(
        "`{0}` is no name of a TAP device: 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-` or `_`, \
         the first a letter or digit"
    )]
    Name(String),
    /// The number of queues is out of range.
    #[error("{0} queues of a TAP device: 1 to {QUEUES_MAX} are possible")]
    Queues(usize),
    /// The kernel has no TUN driver, or the driver is hidden.
    #[error(
        "{PATH} does not exist: load the kernel's module tun, or give this container access to it"
    )]
    NoDriver,
    /// The driver is too old.
    #[error("the kernel's TUN driver has no {0}")]
    Lacks(&'static str),
    /// This process lacks the permission.
    #[error(
        "no permission to {doing}: run as root or with CAP_NET_ADMIN, or let this user have \
         {PATH} and a device of its own (ip tuntap add dev {name} mode tap multi_queue vnet_hdr \
         user USER)"
    )]
    Denied {
        /// Refused action.
        doing: &'static str,
        /// Name of the device.
        name: String,
    },
    /// The device does not exist, but should.
    #[error(
        "there is no network device {0} (ip tuntap add dev {0} mode tap multi_queue vnet_hdr \
         makes one)"
    )]
    NotThere(String),
    /// The device exists, but should not.
    #[error("network device {0} exists already")]
    Exists(String),
    /// A network device of another kind has the name.
    #[error("network device {0} is not a TAP device")]
    NotTap(String),
    /// The device was created with one queue only.
    #[error(
        "TAP device {0} was made with one queue only; delete it (ip link del {0}) and make it \
         again (ip tuntap add dev {0} mode tap multi_queue vnet_hdr)"
    )]
    OneQueue(String),
    /// Another process uses the device.
    #[error("TAP device {0} is in use by another process")]
    InUse(String),
    /// A system call failed.
    #[error("cannot {doing} {name}: {errno}")]
    Refused {
        /// Failed action.
        doing: &'static str,
        /// Name of the device.
        name: String,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Reason why a queue has failed. Reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The device was deleted.
    #[error("the TAP device was deleted")]
    Gone,
    /// Reads have returned nothing but errors for long. Contains the last one.
    #[error("reading the TAP device fails each time: {0}")]
    Failed(Errno),
}

/// Reason why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The device is down.
    #[error("the TAP device is down")]
    Down,
    /// The kernel has no space for the frame.
    #[error("the kernel has no room for the frame")]
    Full,
    /// The kernel refuses the frame: its header does not fit it, or it is too short.
    #[error("the kernel rejects the frame: {0}")]
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
