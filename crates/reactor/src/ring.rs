//! The io_uring of one reactor.

use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, squeue, types};

use crate::op::InFlight;
use crate::slab::Slab;

/// Submission entries: more is queued by submitting early.
const SQ_ENTRIES: u32 = 256;
/// Completion entries: eight queues of 256 requests come back at once; beyond that the kernel
/// keeps them until we look.
const CQ_ENTRIES: u32 = 4096;
/// Kernel workers for buffered writes and flushes (bounded), and for everything else.
const MAX_WORKERS: [u32; 2] = [32, 8];

/// What a completion is about, packed into its user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// An operation of the slab.
    Op(u32),
    /// An eventfd that is watched.
    Watch(u32),
    /// The end of a removal; nothing to do.
    Ignore,
}

const KIND_SHIFT: u32 = 32;

impl Token {
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Op(index) => u64::from(index),
            Self::Watch(index) => (1 << KIND_SHIFT) | u64::from(index),
            Self::Ignore => 2 << KIND_SHIFT,
        }
    }

    pub(crate) fn unpack(data: u64) -> Self {
        match data >> KIND_SHIFT {
            0 => Self::Op(data as u32),
            1 => Self::Watch(data as u32),
            _ => Self::Ignore,
        }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) token: Token,
    pub(crate) result: i32,
    /// The watch goes on.
    pub(crate) more: bool,
}

/// The ring and the operations that the kernel knows.
pub(crate) struct Ring {
    uring: IoUring,
    pub(crate) ops: Slab<InFlight>,
    /// System calls since the last [`Ring::take_syscalls`].
    syscalls: u64,
    queued: bool,
}

/// Makes a ring for the calling thread.
pub(crate) fn build() -> std::io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(CQ_ENTRIES).setup_submit_all();
    // Completions are worked on only when this thread asks: no interrupts, no locks (6.1).
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    match builder.build(SQ_ENTRIES) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let mut older = IoUring::builder();
            older.setup_cqsize(CQ_ENTRIES).setup_coop_taskrun().setup_taskrun_flag();
            older.build(SQ_ENTRIES)
        }
        outcome => outcome,
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Only a thread that unwinds gets here with operations under way. The kernel may still
        // write to their buffers, so these must stay mapped for ever.
        for index in self.ops.indices() {
            std::mem::forget(self.ops.remove(index));
        }
    }
}

impl Ring {
    /// Must run on the thread that will use the ring (SINGLE_ISSUER).
    pub(crate) fn new() -> std::io::Result<Self> {
        let uring = build()?;
        uring.submitter().register_iowq_max_workers(&mut MAX_WORKERS.clone())?;
        Ok(Self { uring, ops: Slab::default(), syscalls: 0, queued: false })
    }

    /// Starts an operation; the kernel learns of it at the next submit.
    pub(crate) fn start(&mut self, entry: squeue::Entry, kept: InFlight) {
        let index = self.ops.insert(kept);
        self.push(entry.user_data(Token::Op(index).pack()));
    }

    /// Reports every readiness of `fd` under [`Token::Watch`] until removed.
    pub(crate) fn watch(&mut self, fd: RawFd, index: u32) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push(entry.user_data(Token::Watch(index).pack()));
    }

    /// Ends a watch; its last completion has `more` false.
    pub(crate) fn unwatch(&mut self, index: u32) {
        let entry = opcode::PollRemove::new(Token::Watch(index).pack()).build();
        self.push(entry.user_data(Token::Ignore.pack()));
    }

    /// Cancels a timer.
    pub(crate) fn cancel_timer(&mut self, index: u32) {
        let entry = opcode::TimeoutRemove::new(Token::Op(index).pack()).build();
        self.push(entry.user_data(Token::Ignore.pack()));
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.queued = true;
        // SAFETY: what the entry points to lives in `ops` (or is a descriptor that a watch slot
        // or the slab keeps open) until the completion has been taken.
        while unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.enter(0);
        }
    }

    fn enter(&mut self, want: usize) {
        self.syscalls += 1;
        match self.uring.submitter().submit_and_wait(want) {
            Ok(_) => self.queued = !self.uring.submission().is_empty(),
            // EINTR: a signal. EBUSY, EAGAIN: completions must be taken first; the caller does.
            Err(error) => {
                let raw = error.raw_os_error();
                let passing = [libc::EINTR, libc::EBUSY, libc::EAGAIN];
                if !raw.is_some_and(|errno| passing.contains(&errno)) {
                    tracing::error!(%error, "io_uring refuses to go on; this reactor is stuck");
                }
            }
        }
    }

    /// Submits what is queued, and lets the kernel finish what it has finished.
    pub(crate) fn flush(&mut self) {
        if self.queued || self.needs_enter() {
            self.enter(0);
        }
    }

    /// Submits what is queued and sleeps until there is a completion.
    pub(crate) fn sleep(&mut self) {
        self.enter(1);
    }

    fn needs_enter(&mut self) -> bool {
        let queue = self.uring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Takes completions into `out`, up to its spare capacity.
    pub(crate) fn reap(&mut self, out: &mut Vec<Completed>) {
        let room = out.capacity() - out.len();
        out.extend(self.uring.completion().take(room).map(|entry| Completed {
            token: Token::unpack(entry.user_data()),
            result: entry.result(),
            more: io_uring::cqueue::more(entry.flags()),
        }));
    }

    pub(crate) fn take_syscalls(&mut self) -> u64 {
        std::mem::take(&mut self.syscalls)
    }
}
