//! An open file as one reactor uses it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use memory::Buffers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A descriptor that stays open until the last operation on it has ended. Cloning counts on this
/// thread only, so reactors that share a file do not share a counter.
#[derive(Clone, Debug)]
pub struct File(Rc<Local>);

#[derive(Debug)]
struct Local(Arc<OwnedFd>);

impl File {
    /// The calling thread's handle on `fd`.
    pub fn new(fd: Arc<OwnedFd>) -> Self {
        Self(Rc::new(Local(fd)))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }

    /// Reads at `offset` if that needs no waiting (RWF_NOWAIT): only for buffered descriptors,
    /// on an O_DIRECT one it waits for the device. May read less than asked.
    ///
    /// # Errors
    /// EAGAIN when it would wait, EOPNOTSUPP when the file system cannot tell.
    pub fn read_nowait(&self, buffers: &Buffers, offset: u64) -> Result<usize, Errno> {
        let iovecs = buffers.iovecs();
        let count = iovecs.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
        let offset = libc::off64_t::try_from(offset).map_err(|_| Errno::INVAL)?;
        // SAFETY: the iovecs point into memory that `buffers` keeps mapped and writable.
        let read =
            unsafe { libc::preadv2(self.raw(), iovecs.as_ptr(), count, offset, libc::RWF_NOWAIT) };
        counted(read)
    }

    /// Reads what a descriptor has that never waits (O_NONBLOCK), by a system call of its own: for
    /// drivers that cannot do [`crate::IoOp::Take`].
    ///
    /// # Errors
    /// EAGAIN when there is nothing.
    pub fn read_ready(&self, buffers: &Buffers) -> Result<usize, Errno> {
        let iovecs = buffers.iovecs();
        let count = iovecs.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
        // SAFETY: the iovecs point into memory that `buffers` keeps mapped and writable.
        counted(unsafe { libc::readv(self.raw(), iovecs.as_ptr(), count) })
    }

    /// Whether poll(2) tells an error now: of a device that is being deleted it does before reads fail.
    pub fn has_error(&self) -> bool {
        let mut told = [PollFd::new(&*self.0.0, PollFlags::empty())];
        let found = poll(&mut told, Some(&Timespec::default()));
        found.is_ok() && told[0].revents().contains(PollFlags::ERR)
    }

    /// Receives what a socket has, if it has anything: at least one byte, or 0 when the peer has
    /// ended. Nobody is asked to wake this thread, so a peer that sends meanwhile pays for no
    /// wake-up.
    ///
    /// # Errors
    /// EAGAIN when there is nothing.
    pub fn recv_nowait(&self, buffers: &Buffers) -> Result<usize, Errno> {
        let iovecs = buffers.iovecs();
        // SAFETY: a message header is plain data, for which zeroes mean absence.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iovecs.as_ptr().cast_mut();
        message.msg_iovlen = iovecs.len().min(libc::UIO_MAXIOV as usize);
        // SAFETY: the iovecs point into memory that `buffers` keeps mapped and writable.
        let got = unsafe { libc::recvmsg(self.raw(), &raw mut message, libc::MSG_DONTWAIT) };
        counted(got)
    }
}

/// What a system call says that counts bytes.
fn counted(result: libc::ssize_t) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}
