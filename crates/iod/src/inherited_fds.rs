//! Descriptors that the parent process left open and named by number on the command line.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::Context;
use rustix::io::{Errno, retry_on_intr, write};
use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Duplicates descriptor number `fd`. The number itself stays open.
///
/// # Errors
/// No descriptor is open under this number.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // A raw number has no owner. The kernel's copy is an owned descriptor.
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(own, fd, PidfdGetfdFlags::empty())?)
}

/// Reports through `fd` that front-ends or callers can connect, by writing one newline.
///
/// # Errors
/// The descriptor cannot be written.
pub fn report_ready(fd: &OwnedFd) -> io::Result<()> {
    retry_on_intr(|| write(fd, b"\n"))?;
    Ok(())
}

/// Returns the connected socket that the parent process passed.
///
/// # Errors
/// The descriptor is not a connected stream socket.
pub(crate) fn connected(fd: i32) -> anyhow::Result<UnixStream> {
    let socket = adopt(fd).context("no descriptor is open under this number")?;
    let kind = sockopt::socket_type(&socket).context("not a socket")?;
    anyhow::ensure!(
        kind == rustix::net::SocketType::STREAM && getpeername(&socket)?.is_some(),
        "not a stream socket that is connected to a front-end"
    );
    // A session blocks in its reads.
    rustix::io::ioctl_fionbio(&socket, false).context("cannot make it blocking")?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_number_becomes_a_descriptor() {
        let (read, written) = rustix::pipe::pipe().unwrap();
        let copy = adopt(written.as_raw_fd()).unwrap();
        report_ready(&copy).unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(&read, &mut byte), Ok(1));
        assert_eq!(byte, *b"\n");
    }

    #[test]
    fn closed_numbers_are_refused() {
        for number in [-1, RawFd::MIN, RawFd::MAX] {
            assert_eq!(adopt(number).unwrap_err().raw_os_error(), Some(9), "{number}");
        }
    }
}
