//! Kinds of descriptors from a front-end, and checks of them.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;

use crate::error::Refusal;

/// Name of an eventfd under `/proc`.
const EVENTFD: &str = "anon_inode:[eventfd]";

fn os(action: &'static str) -> impl Fn(Errno) -> Refusal {
    move |source| Refusal::Os { action, source }
}

/// Returns the kernel's name for the target of a descriptor. Only this name distinguishes an
/// eventfd from other anonymous inodes.
fn name(fd: &OwnedFd) -> Result<String, Refusal> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let link = link.map_err(|error| Refusal::Os {
        action: "inspect a descriptor under /proc/self/fd",
        source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })?;
    Ok(link.to_string_lossy().into_owned())
}

fn is_stream(fd: &OwnedFd) -> Result<bool, Refusal> {
    let stat = fstat(fd).map_err(os("inspect a descriptor"))?;
    Ok(matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket))
}

/// Accepts an eventfd only. One read must consume all kicks, and must never block on the
/// remaining bytes of a pipe.
pub(crate) fn kick(fd: OwnedFd) -> Result<Arc<OwnedFd>, Refusal> {
    let found = name(&fd)?;
    if found == EVENTFD {
        return Ok(Arc::new(fd));
    }
    Err(Refusal::DescriptorKind { role: "kick", found, accepted: "an eventfd is needed" })
}

/// Accepts an eventfd, a pipe or a socket, and makes it non-blocking: a guest that does not read
/// its calls must not stop a reactor. User-Mode Linux passes one end of a socket pair.
pub(crate) fn signal(role: &'static str, fd: OwnedFd) -> Result<Arc<OwnedFd>, Refusal> {
    let found = name(&fd)?;
    if found != EVENTFD && !is_stream(&fd)? {
        let accepted = "an eventfd, a pipe or a socket is needed";
        return Err(Refusal::DescriptorKind { role, found, accepted });
    }
    nonblocking(fd).map(Arc::new)
}

/// Accepts a socket or a pipe, and makes it non-blocking.
pub(crate) fn channel(fd: OwnedFd) -> Result<OwnedFd, Refusal> {
    if !is_stream(&fd)? {
        let accepted = "a socket or a pipe is needed";
        return Err(Refusal::DescriptorKind {
            role: "backend channel",
            found: name(&fd)?,
            accepted,
        });
    }
    nonblocking(fd)
}

fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, Refusal> {
    let flags = fcntl_getfl(fd.as_fd()).map_err(os("read the flags of a descriptor"))?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(os("make a descriptor non-blocking"))?;
    }
    Ok(fd)
}
