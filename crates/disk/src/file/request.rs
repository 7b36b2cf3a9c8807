//! One request in the kernel, possibly in several steps.
//!
//! ```text
//! data, aligned       Whole --short--> Whole ... --> done
//! data, misaligned    Bounced --piece done--> Bounced ... --> done
//! flush               Sync --> done
//! discard             Punch --> done (not supported: done, a discard is a hint)
//! zeroes              Punch or ZeroRange --not supported--> next method ... --> Fill (written)
//!                     Punch or ZeroRange, durable --> Sync --> done
//! ```

use memory::Buffers;
use reactor::{File, IoOp, OpCompletion};
use rustix::io::Errno;
use share::{Op, OpKind};

use crate::bounce::{BounceBuffer, PIECE};
use crate::{IoError, RequestKind};

/// Fallocate mode that punches a hole and keeps the size: the range reads as zeroes afterwards.
const PUNCH_HOLE: i32 = crate::ram::PUNCH_HOLE;
/// Fallocate mode that zeroes a range, keeps it allocated, and keeps the size.
const ZERO_RANGE: i32 = 0x10 | 0x01;

/// Number of a request that the scheduler does not know.
pub(crate) const UNSCHEDULED: u32 = u32::MAX;

/// Method of the next step.
#[derive(Debug)]
pub(crate) enum IoMethod {
    /// The kernel uses the guest's buffers directly.
    Whole,
    /// The data is copied piece by piece through aligned memory. `guest` stores the guest's buffers
    /// meanwhile.
    Bounced {
        guest: Buffers,
        bounce: BounceBuffer,
    },
    /// `mark`: bytes that were in the page cache when it began ([`DirtyBytes::mark`]).
    ///
    /// [`DirtyBytes::mark`]: super::dirty::DirtyBytes::mark
    Sync {
        mark: u64,
    },
    Punch,
    ZeroRange,
    /// Zeroes are written from a bounce buffer.
    Fill {
        zeroes: BounceBuffer,
    },
}

/// Request that the kernel processes, or that waits for space.
#[derive(Debug)]
pub(crate) struct FileRequest {
    pub(crate) tag: u32,
    pub(crate) kind: RequestKind,
    pub(crate) offset: u64,
    pub(crate) left: u64,
    /// Buffers between two steps.
    pub(crate) buffers: Buffers,
    pub(crate) io_method: IoMethod,
    /// True if the request counts as one that waits for space.
    pub(crate) is_waiting: bool,
    /// Number of what the scheduler knows of it, or [`UNSCHEDULED`].
    pub(crate) scheduled: u32,
}

/// Result of a step.
#[derive(Debug)]
pub(crate) enum StepOutcome {
    /// Start the next step.
    Again,
    /// The whole request has completed.
    End(Result<(), IoError>),
    /// The storage is full: start the same step again later.
    Full,
    /// The file system does not support this method.
    Unsupported,
}

impl FileRequest {
    /// Returns whether the data must be durable on completion, because the driver will not flush.
    fn durable(&self) -> bool {
        match self.kind {
            RequestKind::Write { durable } | RequestKind::WriteZeroes { durable, .. } => durable,
            _ => false,
        }
    }

    /// Returns whether its data go into the page cache and nothing makes them durable yet.
    pub(crate) fn dirties(&self) -> bool {
        let writes =
            matches!(self.kind, RequestKind::Write { .. } | RequestKind::WriteZeroes { .. });
        writes && !self.durable()
    }

    /// Lets a request whose data are written end with a sync.
    pub(crate) fn sync_before_end(&mut self, mark: u64) {
        let io_method = std::mem::replace(&mut self.io_method, IoMethod::Sync { mark });
        if let IoMethod::Bounced { guest, .. } = io_method {
            self.buffers = guest;
        }
    }

    /// Returns the length of the next step in bytes.
    fn step_len(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX).min(PIECE)
    }

    /// Returns the next step as the scheduler sees it. `may_split` is whether the channel can split
    /// the request.
    pub(crate) fn scheduled_op(&self, may_split: bool) -> Op {
        let moves = if self.kind == RequestKind::Read { OpKind::Read } else { OpKind::Write };
        let (kind, bytes) = match &self.io_method {
            IoMethod::Sync { .. } => (OpKind::Flush, 0),
            IoMethod::Punch => (OpKind::Discard, 0),
            IoMethod::ZeroRange => (OpKind::Write, 0),
            IoMethod::Whole => (moves, self.left),
            IoMethod::Fill { .. } | IoMethod::Bounced { .. } => (moves, self.step_len() as u64),
        };
        Op { whole: !may_split, ..Op::new(kind, bytes) }
    }

    /// Cuts the first `bytes` from a request whose buffers the kernel uses directly.
    pub(crate) fn cut(&mut self, bytes: u64) -> Self {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let rest = self.buffers.split_off(len, Buffers::default());
        let part = Self {
            left: bytes,
            buffers: std::mem::replace(&mut self.buffers, rest),
            io_method: IoMethod::Whole,
            is_waiting: false,
            ..*self
        };
        self.offset = self.offset.saturating_add(bytes);
        self.left = self.left.saturating_sub(bytes);
        part
    }

    /// Returns the next operation.
    #[inline(always)]
    pub(crate) fn op(&mut self, file: &File, worker: bool) -> IoOp {
        let (file, offset, len) = (file.clone(), self.offset, self.left);
        let durable = self.durable();
        match &self.io_method {
            IoMethod::Sync { .. } => IoOp::Sync { file },
            IoMethod::Punch => IoOp::Allocate { file, mode: PUNCH_HOLE, offset, len },
            IoMethod::ZeroRange => IoOp::Allocate { file, mode: ZERO_RANGE, offset, len },
            IoMethod::Fill { zeroes } => {
                let buffers = zeroes.part(0, self.step_len());
                IoOp::Write { file, offset, buffers, durable, worker }
            }
            IoMethod::Bounced { guest, bounce } => {
                let buffers = bounce.part(0, self.step_len());
                if self.kind == RequestKind::Read {
                    return IoOp::Read { file, offset, buffers };
                }
                buffers.copy_from_buffers(guest);
                IoOp::Write { file, offset, buffers, durable, worker }
            }
            IoMethod::Whole => {
                let buffers = std::mem::take(&mut self.buffers);
                if self.kind == RequestKind::Read {
                    return IoOp::Read { file, offset, buffers };
                }
                IoOp::Write { file, offset, buffers, durable, worker }
            }
        }
    }

    /// Processes the result of the last operation.
    #[inline(always)]
    pub(crate) fn step(&mut self, op_completion: OpCompletion) -> StepOutcome {
        let outcome = op_completion.outcome();
        let buffers = op_completion.buffers.unwrap_or_default();
        let moved = match outcome {
            Ok(bytes) => u64::from(bytes),
            Err(errno) => return self.failed(errno, buffers),
        };
        let durable = self.durable();
        match &mut self.io_method {
            IoMethod::Punch | IoMethod::ZeroRange if durable => {
                self.io_method = IoMethod::Sync { mark: 0 };
                return StepOutcome::Again;
            }
            IoMethod::Sync { .. } | IoMethod::Punch | IoMethod::ZeroRange => {
                return StepOutcome::End(Ok(()));
            }
            IoMethod::Fill { .. } => {}
            IoMethod::Bounced { guest, .. } => {
                if self.kind == RequestKind::Read {
                    let mut read = buffers;
                    read.truncate(moved as usize);
                    guest.copy_from_buffers(&read);
                }
                guest.advance(moved as usize);
            }
            IoMethod::Whole => {
                self.buffers = buffers;
                self.buffers.advance(moved as usize);
            }
        }
        self.offset = self.offset.saturating_add(moved);
        self.left = self.left.saturating_sub(moved);
        match (self.left, moved) {
            (0, _) => StepOutcome::End(Ok(())),
            // The file ends before the disk does: another process shrank it.
            (_, 0) => StepOutcome::End(Err(IoError::Short)),
            _ => StepOutcome::Again,
        }
    }

    fn failed(&mut self, errno: Errno, buffers: Buffers) -> StepOutcome {
        if matches!(self.io_method, IoMethod::Whole) {
            self.buffers = buffers;
        }
        match errno {
            Errno::AGAIN | Errno::INTR => StepOutcome::Again,
            // A failed flush has lost data: a second flush would wrongly succeed.
            Errno::NOSPC | Errno::DQUOT if !matches!(self.io_method, IoMethod::Sync { .. }) => {
                StepOutcome::Full
            }
            Errno::OPNOTSUPP | Errno::NODEV | Errno::INVAL
                if matches!(self.io_method, IoMethod::Punch | IoMethod::ZeroRange) =>
            {
                StepOutcome::Unsupported
            }
            Errno::FAULT => StepOutcome::End(Err(IoError::Memory)),
            other => StepOutcome::End(Err(IoError::Storage(other))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(io_method: IoMethod, kind: RequestKind, errno: Errno) -> StepOutcome {
        let buffers = Buffers::default();
        let mut file_request = FileRequest {
            tag: 0,
            kind,
            offset: 0,
            left: 4096,
            buffers,
            io_method,
            is_waiting: false,
            scheduled: UNSCHEDULED,
        };
        file_request.step(OpCompletion { tag: 0, result: -errno.raw_os_error(), buffers: None })
    }

    #[test]
    fn full_storage_delays_writes_and_fails_flushes() {
        let write = RequestKind::Write { durable: false };
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            assert!(matches!(step(IoMethod::Whole, write, errno), StepOutcome::Full));
            // The kernel reports lost data once; waiting and retrying would hide the loss.
            let flushed = step(IoMethod::Sync { mark: 0 }, RequestKind::Flush, errno);
            assert!(matches!(flushed, StepOutcome::End(Err(IoError::Storage(_)))), "{flushed:?}");
        }
    }

    #[test]
    fn a_way_that_is_not_supported_leads_to_another() {
        let zeroes = RequestKind::WriteZeroes { unmap: true, durable: false };
        assert!(matches!(
            step(IoMethod::Punch, zeroes, Errno::OPNOTSUPP),
            StepOutcome::Unsupported
        ));
        let sync = IoMethod::Sync { mark: 0 };
        assert!(matches!(step(sync, zeroes, Errno::OPNOTSUPP), StepOutcome::End(Err(_))));
    }
}
