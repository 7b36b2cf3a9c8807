//! The io_uring of one reactor.

use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, squeue, types};

use crate::File;
use crate::notifier::{NotifierState, ONE, Send};
use crate::op::InFlight;
use crate::slab::Slab;

/// Submission entries. When the queue is full, its entries are submitted early.
const SQ_ENTRIES: u32 = 256;
/// Completion entries: enough for eight queues of 256 requests at once. The kernel stores further
/// completions until the reactor reads them.
const CQ_ENTRIES: u32 = 4096;
/// Limits of kernel workers: for operations that may sleep on files and block devices (bounded),
/// and for all others. The kernel creates a worker when all existing ones sleep, and ends it after
/// 5 s without work. A worker that sleeps on hanging storage never returns. So there must be more
/// workers than a disk has requests (four queues of 1024): otherwise one such disk takes the
/// workers of all its neighbours.
const MAX_WORKERS: [u32; 2] = [4096 + 32, 8];

/// Subject of a completion, packed into its user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Operation of the slab.
    Op(u32),
    /// Watched eventfd.
    Watch(u32),
    /// Signal that the kernel had to confirm.
    Bell(u32),
    /// Cancellation of a watch.
    Unwatch(u32),
    /// Completion of a cancellation, or failed signal: needs no action.
    Ignore,
}

const KIND_SHIFT: u32 = 32;
/// User data of signals that report only failure, which needs no action: unpacks to `Ignore`.
const SILENT_BELL: u64 = 4 << KIND_SHIFT;

impl Token {
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Op(index) => u64::from(index),
            Self::Watch(index) => (1 << KIND_SHIFT) | u64::from(index),
            Self::Bell(index) => (2 << KIND_SHIFT) | u64::from(index),
            Self::Ignore => 3 << KIND_SHIFT,
            Self::Unwatch(index) => (5 << KIND_SHIFT) | u64::from(index),
        }
    }

    pub(crate) fn unpack(data: u64) -> Self {
        match data >> KIND_SHIFT {
            0 => Self::Op(data as u32),
            1 => Self::Watch(data as u32),
            2 => Self::Bell(data as u32),
            5 => Self::Unwatch(data as u32),
            _ => Self::Ignore,
        }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub(crate) token: Token,
    pub(crate) result: i32,
    /// True if the watch continues.
    pub(crate) more: bool,
}

/// The ring and the operations that the kernel knows.
pub(crate) struct Ring {
    uring: IoUring,
    pub(crate) ops: Slab<InFlight>,
    /// Files that this side has closed and that unsubmitted entries may still name.
    parting: Vec<File>,
    /// System calls since the last [`Ring::take_syscalls`].
    syscalls: u64,
    queued: bool,
}

/// Creates a ring for the calling thread.
pub(crate) fn build() -> std::io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(CQ_ENTRIES).setup_submit_all();
    // The kernel processes completions only when this thread enters it: no interrupts, no locks
    // (6.1).
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
        // Only a thread that unwinds drops a ring with operations in flight. The kernel may still
        // write to their buffers, so these must stay mapped for ever.
        for index in self.ops.indices() {
            std::mem::forget(self.ops.remove(index));
        }
    }
}

impl Ring {
    /// Creates the ring. Must run on the thread that will use it (SINGLE_ISSUER).
    pub(crate) fn new() -> std::io::Result<Self> {
        let uring = build()?;
        uring.submitter().register_iowq_max_workers(&mut MAX_WORKERS.clone())?;
        Ok(Self { uring, ops: Slab::default(), parting: Vec::new(), syscalls: 0, queued: false })
    }

    /// Starts an operation; the kernel receives it at the next submission.
    pub(crate) fn start(&mut self, entry: squeue::Entry, kept: InFlight) {
        let index = self.ops.insert(kept);
        self.push(entry.user_data(Token::Op(index).pack()));
    }

    /// Reports every readiness of `fd` under [`Token::Watch`] until the watch is cancelled.
    pub(crate) fn watch(&mut self, fd: RawFd, index: u32) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push(entry.user_data(Token::Watch(index).pack()));
    }

    /// Cancels a watch; its last completion has `more` false. A watch that is just reporting
    /// continues: the completion of [`Token::Unwatch`] is EALREADY then, and the caller must cancel
    /// again.
    pub(crate) fn unwatch(&mut self, index: u32) {
        let entry = opcode::PollRemove::new(Token::Watch(index).pack()).build();
        self.push(entry.user_data(Token::Unwatch(index).pack()));
    }

    /// Writes a signal to a peer's descriptor.
    pub(crate) fn signal(&mut self, bell: &NotifierState, send: Send) {
        let fd = types::Fd(bell.file.raw());
        let one = (&raw const ONE).cast();
        let entry = opcode::Write::new(fd, one, size_of::<u64>() as u32).offset(u64::MAX).build();
        self.push(match send {
            Send::Confirmed => entry.user_data(Token::Bell(bell.id).pack()),
            Send::Silent => {
                entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(SILENT_BELL | u64::from(bell.id))
            }
        });
    }

    /// Cancels the signals that a peer has not read. Keeps the descriptor open until the kernel has
    /// read every entry that names it.
    pub(crate) fn close_notifier(&mut self, bell: &NotifierState) {
        for data in [Token::Bell(bell.id).pack(), SILENT_BELL | u64::from(bell.id)] {
            let all = types::CancelBuilder::user_data(data).all();
            let entry = opcode::AsyncCancel2::new(all).build();
            self.push(entry.user_data(Token::Ignore.pack()));
        }
        self.parting.push(bell.file.clone());
    }

    /// Cancels a timer.
    pub(crate) fn cancel_timer(&mut self, index: u32) {
        let entry = opcode::TimeoutRemove::new(Token::Op(index).pack()).build();
        self.push(entry.user_data(Token::Ignore.pack()));
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.queued = true;
        // SAFETY: the entry points to static data or to data in `ops`. A watch, the slab, a
        // notifier or `parting` keeps its descriptor open until the kernel no longer needs it.
        while unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.enter(0);
        }
    }

    fn enter(&mut self, want: usize) {
        self.syscalls += 1;
        match self.uring.submitter().submit_and_wait(want) {
            Ok(_) => {
                self.queued = !self.uring.submission().is_empty();
                if !self.queued {
                    self.parting.clear();
                }
            }
            // EINTR: a signal. EBUSY, EAGAIN: the caller must reap completions first, and does.
            Err(error) => {
                let raw = error.raw_os_error();
                let passing = [libc::EINTR, libc::EBUSY, libc::EAGAIN];
                if !raw.is_some_and(|errno| passing.contains(&errno)) {
                    tracing::error!(%error, "io_uring failed; this reactor is stuck");
                }
            }
        }
    }

    /// Submits the queued entries, and runs the kernel's pending completion work.
    pub(crate) fn flush(&mut self) {
        if self.queued || self.needs_enter() {
            self.enter(0);
        }
    }

    /// Submits the queued entries and sleeps until there is a completion.
    pub(crate) fn sleep(&mut self) {
        self.enter(1);
    }

    fn needs_enter(&mut self) -> bool {
        let queue = self.uring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Moves completions into `out`, up to its spare capacity.
    pub(crate) fn reap(&mut self, out: &mut Vec<Cqe>) {
        let room = out.capacity() - out.len();
        out.extend(self.uring.completion().take(room).map(|entry| Cqe {
            token: Token::unpack(entry.user_data()),
            result: entry.result(),
            more: io_uring::cqueue::more(entry.flags()),
        }));
    }

    pub(crate) fn take_syscalls(&mut self) -> u64 {
        std::mem::take(&mut self.syscalls)
    }
}
