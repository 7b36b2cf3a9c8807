//! Operations of the kernel and their results.

use std::time::Duration;

use io_uring::{opcode, squeue, types};
use memory::Buffers;
use rustix::io::Errno;

use crate::File;

/// Bit of the `op_flags` of a write: durable when it completes.
const RWF_DSYNC: i32 = libc::RWF_DSYNC;
/// Bit of the `op_flags` of a read: EAGAIN instead of a wait.
const RWF_NOWAIT: i32 = libc::RWF_NOWAIT;

/// Where a file without offsets is read and written.
const NO_OFFSET: u64 = u64::MAX;

/// Something the kernel does for a poller. Everything that it touches is owned here.
#[derive(Debug)]
pub enum IoOp {
    /// Fill the buffers from `offset` (bytes).
    Read {
        /// From where.
        file: File,
        /// Byte offset.
        offset: u64,
        /// Into what.
        buffers: Buffers,
    },
    /// Fill the buffers with what a device without offsets has, which for a TAP device is one frame;
    /// EAGAIN at once if it has nothing, EOPNOTSUPP if its driver cannot tell (that of TAP devices
    /// can since Linux 6.4). Several of these in a turn cost one system call.
    Take {
        /// From where.
        file: File,
        /// Into what.
        buffers: Buffers,
    },
    /// Write the buffers at `offset` (bytes).
    Write {
        /// To where.
        file: File,
        /// Byte offset.
        offset: u64,
        /// From what.
        buffers: Buffers,
        /// Durable on completion (RWF_DSYNC).
        durable: bool,
        /// Start on a kernel worker at once: for writes that are known to wait.
        worker: bool,
    },
    /// fdatasync.
    Sync {
        /// What.
        file: File,
    },
    /// fallocate with `mode` over a range in bytes.
    Allocate {
        /// Where.
        file: File,
        /// FALLOC_FL bits.
        mode: i32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Receive from a socket into the buffers: at least one byte, or 0 when the peer has ended.
    Recv {
        /// From where.
        socket: File,
        /// Into what.
        buffers: Buffers,
    },
    /// Send all of the buffers to a socket. A result below their length is an end in the middle:
    /// the socket was shut down, or the kernel is an old one; the rest may be sent again.
    Send {
        /// To where.
        socket: File,
        /// What, in at most 1024 pieces.
        buffers: Buffers,
    },
    /// Nothing, after a time.
    Timer {
        /// From submission on.
        after: Duration,
    },
}

/// Where the operations of one owner come back. Made by [`crate::Context::open_port`]; the
/// operations of a closed port still run to their end.
#[derive(Debug, PartialEq, Eq)]
pub struct CompletionPort {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// An operation that has ended.
#[derive(Debug)]
pub struct OpCompletion {
    /// What the submitter called it.
    pub tag: u64,
    /// Bytes or 0, or a negated errno. A timer that ran out says 0.
    pub result: i32,
    /// The buffers it was given.
    pub buffers: Option<Buffers>,
}

impl OpCompletion {
    /// The result as one: bytes, or what the kernel refused with.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn outcome(&self) -> Result<u32, Errno> {
        match u32::try_from(self.result) {
            Ok(bytes) => Ok(bytes),
            // Outside of 1 to 4095 there are no error numbers.
            Err(_) if self.result < -4095 => Err(Errno::IO),
            Err(_) => Err(Errno::from_raw_os_error(-self.result)),
        }
    }
}

/// An operation that the kernel knows.
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
    /// Likewise.
    _message: Option<Box<libc::msghdr>>,
}

impl InFlight {
    /// The submission entry for `op`, and what must outlive it.
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
        // One piece needs no iovec: the kernel skips a copy.
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

/// A message of several pieces. It points into the heap part of `buffers`, which stays where it
/// is when the list itself moves.
fn message_of(buffers: &Buffers) -> Box<libc::msghdr> {
    let iovecs = buffers.iovecs();
    // SAFETY: a message header is plain data, for which zeroes mean absence.
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
    // A peer that has gone is an error and no signal; a full socket is waited for.
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
