//! File descriptor as one reactor uses it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use memory::Buffers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Descriptor that stays open until the last operation on it has completed. Clones are counted on
/// this thread only, so reactors that share a file do not contend on a counter.
#[derive(Clone, Debug)]
pub struct File(Rc<Local>);

#[derive(Debug)]
struct Local(Arc<OwnedFd>);

impl File {
    /// Creates the calling thread's handle on `fd`.
    pub fn new(fd: Arc<OwnedFd>) -> Self {
        Self(Rc::new(Local(fd)))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }

    /// Reads at `offset` if that is possible without waiting (RWF_NOWAIT). Only for buffered
    /// descriptors: an O_DIRECT read waits for the device. May read less than requested.
    ///
    /// # Errors
    /// EAGAIN if the read would wait, EOPNOTSUPP if the file system does not support the flag.
    pub fn read_nowait(&self, buffers: &Buffers, offset: u64) -> Result<usize, Errno> {
        self.read(buffers, offset, libc::RWF_NOWAIT)
    }

    /// Reads at `offset`, and waits if it must. On a reactor only for files whose bytes are always
    /// in memory. May read less than requested.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read_memory(&self, buffers: &Buffers, offset: u64) -> Result<usize, Errno> {
        self.read(buffers, offset, 0)
    }

    fn read(&self, buffers: &Buffers, offset: u64, flags: libc::c_int) -> Result<usize, Errno> {
        let iovecs = buffers.iovecs();
        let count = iovecs.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
        let offset = libc::off64_t::try_from(offset).map_err(|_| Errno::INVAL)?;
        // SAFETY: the iovecs point into memory that `buffers` keeps mapped and writable.
        let read = unsafe { libc::preadv2(self.raw(), iovecs.as_ptr(), count, offset, flags) };
        counted(read)
    }

    /// Reads the available bytes of a nonblocking descriptor (O_NONBLOCK) with its own system call.
    /// For drivers that do not support [`crate::IoOp::Take`].
    ///
    /// # Errors
    /// EAGAIN if no bytes are available.
    pub fn read_ready(&self, buffers: &Buffers) -> Result<usize, Errno> {
        let iovecs = buffers.iovecs();
        let count = iovecs.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
        // SAFETY: the iovecs point into memory that `buffers` keeps mapped and writable.
        counted(unsafe { libc::readv(self.raw(), iovecs.as_ptr(), count) })
    }

    /// Returns whether poll(2) reports an error now. A device that is being deleted reports it
    /// before reads fail.
    pub fn has_error(&self) -> bool {
        let mut fds = [PollFd::new(&*self.0.0, PollFlags::empty())];
        let found = poll(&mut fds, Some(&Timespec::default()));
        found.is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }

    /// Receives the available bytes of a socket: at least one byte, or 0 if the peer has closed.
    /// This registers no wake-up for this thread, so the peer does not pay for one if it sends
    /// meanwhile.
    ///
    /// # Errors
    /// EAGAIN if no bytes are available.
    pub fn recv_nowait(&self, buffers: &Buffers) -> Result<usize, Errno> {
        let iovecs = buffers.iovecs();
        // SAFETY: a message header is plain data, and all zeroes mean an empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iovecs.as_ptr().cast_mut();
        message.msg_iovlen = iovecs.len().min(libc::UIO_MAXIOV as usize);
        // SAFETY: the iovecs point into memory that `buffers` keeps mapped and writable.
        let got = unsafe { libc::recvmsg(self.raw(), &raw mut message, libc::MSG_DONTWAIT) };
        counted(got)
    }
}

/// Converts the result of a system call that returns a number of bytes.
fn counted(result: libc::ssize_t) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}
