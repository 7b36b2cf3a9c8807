//! Operations of the kernel and their results.

use std::time::Duration;

use io_uring::{opcode, squeue, types};
use memory::Buffers;
use rustix::io::Errno;

use crate::File;

/// Flag of a write: the data is durable when the write completes.
const RWF_DSYNC: i32 = libc::RWF_DSYNC;
/// Flag of a read: EAGAIN instead of a wait.
const RWF_NOWAIT: i32 = libc::RWF_NOWAIT;

/// Offset for files that have no offsets.
const NO_OFFSET: u64 = u64::MAX;

/// Operation of the kernel for a poller. The operation owns everything that the kernel accesses.
#[derive(Debug)]
pub enum IoOp {
    /// Fills the buffers from `offset` (bytes).
    Read {
        /// File to read from.
        file: File,
        /// Byte offset.
        offset: u64,
        /// Buffers to read into.
        buffers: Buffers,
    },
    /// Fills the buffers from a device without offsets; for a TAP device, with one frame. Completes
    /// with EAGAIN at once if there are no data, and with EOPNOTSUPP if the driver does not support
    /// RWF_NOWAIT. The TAP driver supports it since Linux 6.4. Several such reads in a turn cost
    /// one system call.
    Take {
        /// Device to read from.
        file: File,
        /// Buffers to read into.
        buffers: Buffers,
    },
    /// Writes the buffers at `offset` (bytes).
    Write {
        /// File to write to.
        file: File,
        /// Byte offset.
        offset: u64,
        /// Buffers to write from.
        buffers: Buffers,
        /// True for a write that is durable when it completes (RWF_DSYNC).
        durable: bool,
        /// True to start the write on a kernel worker at once: for writes that are known to wait.
        worker: bool,
    },
    /// Makes written data durable with fdatasync.
    Sync {
        /// File to synchronize.
        file: File,
    },
    /// Calls fallocate with `mode` on a range in bytes.
    Allocate {
        /// File to change.
        file: File,
        /// FALLOC_FL flags.
        mode: i32,
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// Receives from a socket into the buffers: at least one byte, or 0 if the peer has closed.
    Recv {
        /// Socket to receive from.
        socket: File,
        /// Buffers to receive into.
        buffers: Buffers,
    },
    /// Sends all of the buffers to a socket. A shorter result means that the send ended early: the
    /// socket was shut down, or the kernel is an old one. The rest may be sent again.
    Send {
        /// Socket to send to.
        socket: File,
        /// Buffers to send, in at most 1024 pieces.
        buffers: Buffers,
    },
    /// Completes after a time.
    Timer {
        /// Time from submission to completion.
        after: Duration,
    },
}

/// Completion queue for the operations of one owner, opened by [`crate::Context::open_port`]. After
/// the port is closed, its operations still run to completion.
#[derive(Debug, PartialEq, Eq)]
pub struct CompletionPort {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Completed operation.
#[derive(Debug)]
pub struct OpCompletion {
    /// Tag that the submitter chose.
    pub tag: u64,
    /// Bytes or 0, or a negated errno. A timer that expired reports 0.
    pub result: i32,
    /// Buffers of the operation, returned to the submitter.
    pub buffers: Option<Buffers>,
}

impl OpCompletion {
    /// Returns the result as a number of bytes.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn outcome(&self) -> Result<u32, Errno> {
        match u32::try_from(self.result) {
            Ok(bytes) => Ok(bytes),
            // Values outside of 1 to 4095 are no error numbers.
            Err(_) if self.result < -4095 => Err(Errno::IO),
            Err(_) => Err(Errno::from_raw_os_error(-self.result)),
        }
    }
}

/// Operation that the kernel knows.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) port: u32,
    pub(crate) generation: u32,
    pub(crate) tag: u64,
    pub(crate) buffers: Option<Buffers>,
    pub(crate) timer: bool,
    /// Keeps the descriptor open.
    _file: Option<File>,
    /// The kernel reads it when the entry is submitted.
    _timespec: Option<Box<types::Timespec>>,
    /// The kernel reads it when the entry is submitted.
    _message: Option<Box<libc::msghdr>>,
}

impl InFlight {
    /// Returns the submission entry for `op`, and the values that must outlive it.
    pub(crate) fn prepare(port: &CompletionPort, op: IoOp, tag: u64) -> (squeue::Entry, Self) {
        let mut kept = Self {
            port: port.index,
            generation: port.generation,
            tag,
            buffers: None,
            timer: false,
            _file: None,
            _timespec: None,
            _message: None,
        };
        let entry = match op {
            IoOp::Read { file, offset, buffers } => {
                let entry = read_entry(&file, offset, &buffers, 0);
                kept.buffers = Some(buffers);
                kept._file = Some(file);
                entry
            }
            IoOp::Take { file, buffers } => {
                let entry = read_entry(&file, NO_OFFSET, &buffers, RWF_NOWAIT);
                kept.buffers = Some(buffers);
                kept._file = Some(file);
                entry
            }
            IoOp::Write { file, offset, buffers, durable, worker } => {
                let entry = write_entry(&file, offset, &buffers, durable);
                kept.buffers = Some(buffers);
                kept._file = Some(file);
                if worker { entry.flags(squeue::Flags::ASYNC) } else { entry }
            }
            IoOp::Sync { file } => {
                let fd = types::Fd(file.raw());
                kept._file = Some(file);
                opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
            }
            IoOp::Allocate { file, mode, offset, len } => {
                let fd = types::Fd(file.raw());
                kept._file = Some(file);
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
            }
            IoOp::Recv { socket, buffers } => {
                let (entry, message) = recv_entry(&socket, &buffers);
                kept.buffers = Some(buffers);
                kept._file = Some(socket);
                kept._message = message;
                entry
            }
            IoOp::Send { socket, buffers } => {
                let (entry, message) = send_entry(&socket, &buffers);
                kept.buffers = Some(buffers);
                kept._file = Some(socket);
                kept._message = message;
                entry
            }
            IoOp::Timer { after } => {
                let timespec = Box::new(types::Timespec::from(after));
                let entry = opcode::Timeout::new(&raw const *timespec).build();
                kept._timespec = Some(timespec);
                kept.timer = true;
                entry
            }
        };
        (entry, kept)
    }
}

fn read_entry(file: &File, offset: u64, buffers: &Buffers, flags: i32) -> squeue::Entry {
    let fd = types::Fd(file.raw());
    match buffers.iovecs() {
        // A single piece needs no iovec: that saves the kernel a copy.
        [one] if u32::try_from(one.iov_len).is_ok() => {
            opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32)
                .offset(offset)
                .rw_flags(flags)
                .build()
        }
        many => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32)
            .offset(offset)
            .rw_flags(flags)
            .build(),
    }
}

fn write_entry(file: &File, offset: u64, buffers: &Buffers, durable: bool) -> squeue::Entry {
    let fd = types::Fd(file.raw());
    let flags = if durable { RWF_DSYNC } else { 0 };
    match buffers.iovecs() {
        [one] if u32::try_from(one.iov_len).is_ok() => {
            opcode::Write::new(fd, one.iov_base.cast_const().cast(), one.iov_len as u32)
                .offset(offset)
                .rw_flags(flags)
                .build()
        }
        many => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32)
            .offset(offset)
            .rw_flags(flags)
            .build(),
    }
}

/// Builds a message of several pieces. It points into the heap part of `buffers`, which stays in
/// place when the list itself moves.
fn message_of(buffers: &Buffers) -> Box<libc::msghdr> {
    let iovecs = buffers.iovecs();
    // SAFETY: a message header is plain data, and all zeroes mean an empty one.
    let mut message: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
    message.msg_iov = iovecs.as_ptr().cast_mut();
    message.msg_iovlen = iovecs.len();
    message
}

fn recv_entry(socket: &File, buffers: &Buffers) -> (squeue::Entry, Option<Box<libc::msghdr>>) {
    let fd = types::Fd(socket.raw());
    if let [one] = buffers.iovecs()
        && let Ok(len) = u32::try_from(one.iov_len)
    {
        return (opcode::Recv::new(fd, one.iov_base.cast(), len).build(), None);
    }
    let mut message = message_of(buffers);
    let entry = opcode::RecvMsg::new(fd, &raw mut *message).build();
    (entry, Some(message))
}

fn send_entry(socket: &File, buffers: &Buffers) -> (squeue::Entry, Option<Box<libc::msghdr>>) {
    let fd = types::Fd(socket.raw());
    // A disconnected peer causes an error instead of a signal. The kernel waits while the socket is
    // full.
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    if let [one] = buffers.iovecs()
        && let Ok(len) = u32::try_from(one.iov_len)
    {
        let entry = opcode::Send::new(fd, one.iov_base.cast_const().cast(), len);
        return (entry.flags(flags).build(), None);
    }
    let message = message_of(buffers);
    let entry = opcode::SendMsg::new(fd, &raw const *message).flags(flags as u32).build();
    (entry, Some(message))
}
