//! One queue of a device, as a reactor uses it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::{Buffers, MemoryError, ThreadMapping};
use net::frame::FRAME_MAX;
use net::header::HEADER_BYTES;
use reactor::{CompletionPort, Context, File, IoOp, OpCompletion};
use rustix::io::Errno;

use crate::batch::{BATCH_MAX, ReadBatch};
use crate::skipped_frames::SkippedFrames;
use crate::{QueueError, SendError};

/// Bytes of memory for a frame and its header, in whole pages. A switch accepts no frame that fills
/// a slot.
pub const SLOT_BYTES: usize = (HEADER_BYTES + FRAME_MAX as usize).next_multiple_of(4096);
/// Number of slots for frames, which are in the kernel, free, or with their user. The kernel
/// provides memory only for the slots and pages that are used.
pub const SLOTS: usize = 2 * BATCH_MAX;

/// A received frame, after its header. Return it with [`Queue::recycle`], or its slot is lost.
#[derive(Debug)]
#[must_use = "its place in memory is given back by recycle"]
pub struct Frame {
    buffers: Buffers,
    slot: u16,
}

impl Frame {
    /// Returns the header and the frame. Only this process has the memory.
    pub fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }
}

/// A frame that [`Queue::send`] has handled.
#[derive(Debug)]
pub struct Sent {
    /// Tag that the sender gave it.
    pub tag: u64,
    /// Memory of the frame.
    pub buffers: Buffers,
    /// Result: sent, or the reason why not.
    pub outcome: Result<(), SendError>,
}

/// One queue of a device, on the reactor that owns it. Its operations in the kernel end with its
/// poller.
#[derive(Debug)]
pub struct Queue {
    file: File,
    reads: CompletionPort,
    writes: CompletionPort,
    thread_mapping: ThreadMapping,
    /// Free slots, ready for reads.
    free: Vec<Frame>,
    received: VecDeque<Frame>,
    sent: VecDeque<Sent>,
    op_completion: Vec<OpCompletion>,
    batch: ReadBatch,
    skipped_frames: SkippedFrames,
    /// Number of reads in the kernel.
    asked: usize,
    /// True if frames may wait: the device notified, or the last batch did not find the end.
    ready: bool,
    /// True if frames are read one by one, because the driver cannot report that a read would wait
    /// (before Linux 6.4). Reads that wait in the kernel are no option: nothing ends them with
    /// their poller.
    direct: bool,
    /// True if a notification may have reported an error besides frames.
    maybe_error: bool,
    /// True if the device must be checked for an error: a notification brought no frames.
    must_check: bool,
    /// True while the queue starts no reads.
    rests: bool,
    failed: bool,
}

impl Queue {
    /// Creates a queue for the poller that is being created. The reactor should watch the same
    /// descriptor, as the poller's kick.
    ///
    /// # Errors
    /// There is no memory for frames.
    ///
    /// # Panics
    /// The call is outside of a poller.
    pub fn new(context: &mut Context<'_>, fd: Arc<OwnedFd>) -> Result<Self, MemoryError> {
        let thread_mapping = ThreadMapping::private(SLOTS * SLOT_BYTES)?;
        let mut free = Vec::with_capacity(SLOTS);
        for slot in 0..SLOTS as u16 {
            free.push(whole(&thread_mapping, Buffers::with_capacity(1), slot));
        }
        Ok(Self {
            file: File::new(fd),
            reads: context.open_port(),
            writes: context.open_port(),
            thread_mapping,
            free,
            received: VecDeque::with_capacity(SLOTS),
            sent: VecDeque::with_capacity(SLOTS),
            op_completion: Vec::with_capacity(SLOTS),
            batch: ReadBatch::default(),
            skipped_frames: SkippedFrames::default(),
            asked: 0,
            ready: true,
            direct: false,
            maybe_error: false,
            must_check: false,
            rests: false,
            failed: false,
        })
    }

    /// Handles a notification of the device: frames wait, or it has an error. Call once for each
    /// notification.
    pub fn kicked(&mut self, error: bool) {
        // The next frames may belong to one notification, and an error to the other.
        self.maybe_error |= error || self.ready;
        self.ready = true;
    }

    /// Returns whether frames may wait for which no read was started.
    pub fn has_work(&self) -> bool {
        let may = !self.failed && !self.rests;
        self.ready && may && self.asked == 0 && !self.free.is_empty()
    }

    /// Pauses or resumes reads. Reads in the kernel still complete.
    pub fn set_paused(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// Returns whether no read is in the kernel.
    pub fn has_no_reads(&self) -> bool {
        self.asked == 0
    }

    /// Returns the number of frames that the kernel could not deliver since the last call. They are
    /// lost; frames behind them arrive.
    pub fn take_skipped(&mut self) -> u64 {
        self.skipped_frames.take()
    }

    /// Collects completed reads and writes.
    ///
    /// # Errors
    /// The queue has failed. Reported once. Frames that arrived before are available.
    pub fn reap(&mut self, context: &mut Context<'_>) -> Result<(), QueueError> {
        let mut gone = false;
        context.reap(&self.writes, &mut self.op_completion);
        for OpCompletion { tag, result, buffers } in self.op_completion.drain(..) {
            let outcome = OpCompletion { tag, result, buffers: None }.outcome();
            let outcome = outcome.map(|_| ()).map_err(SendError::of);
            gone |= outcome == Err(SendError::Gone);
            self.sent.push_back(Sent { tag, buffers: buffers.unwrap_or_default(), outcome });
        }
        context.reap(&self.reads, &mut self.op_completion);
        if !self.op_completion.is_empty() {
            self.sort()?;
        }
        // A queue that only sends detects the end of its device this way.
        if gone {
            self.fail(QueueError::Gone)?;
        }
        if self.direct && self.has_work() {
            self.read(context)?;
        }
        if std::mem::take(&mut self.must_check) { self.check_device(context) } else { Ok(()) }
    }

    /// Checks the device for an error. A deleted device wakes its readers just before reads fail. A
    /// read in between finds nothing and is not woken again, but the device reports an error by
    /// then.
    fn check_device(&mut self, context: &Context<'_>) -> Result<(), QueueError> {
        context.count_syscalls(1);
        if self.file.has_error() { self.fail(QueueError::Gone) } else { Ok(()) }
    }

    /// Handles the completed reads, which are in the order in which they were submitted.
    fn sort(&mut self) -> Result<(), QueueError> {
        let (mut frames, ended, mut failure) = (0, self.op_completion.len(), None);
        for op_completion in self.op_completion.drain(..) {
            let outcome = op_completion.outcome();
            let slot = op_completion.tag as u16;
            let mut frame = Frame { buffers: op_completion.buffers.unwrap_or_default(), slot };
            match outcome {
                Ok(bytes) => {
                    frame.buffers.truncate(bytes as usize);
                    self.received.push_back(frame);
                    self.skipped_frames.end_run();
                    frames += 1;
                }
                Err(errno) => {
                    self.free.push(frame);
                    if errno == Errno::OPNOTSUPP {
                        self.direct = true;
                        continue;
                    }
                    match self.skipped_frames.judge(errno) {
                        Ok(skipped) => frames += usize::from(skipped),
                        Err(error) => failure = failure.or(Some(error)),
                    }
                }
            }
        }
        self.asked = self.asked.saturating_sub(ended);
        self.batch.ended(ended, frames);
        // If a read found the end, the device notifies of later frames. A skipped frame is not the
        // end: the device does not notify of the frames behind it.
        self.ready |= frames == ended || self.direct;
        if frames < ended && !self.direct {
            self.must_check = std::mem::take(&mut self.maybe_error) || frames == 0;
        }
        failure.map_or(Ok(()), |error| self.fail(error))
    }

    /// Reads the frames that wait, up to a batch.
    fn read(&mut self, context: &Context<'_>) -> Result<(), QueueError> {
        for read in 0..BATCH_MAX {
            let Some(mut frame) = self.free.pop() else { break };
            context.count_syscalls(1);
            match self.file.read_ready(&frame.buffers) {
                Ok(bytes) => {
                    frame.buffers.truncate(bytes);
                    self.received.push_back(frame);
                    self.skipped_frames.end_run();
                }
                Err(errno) => {
                    self.free.push(frame);
                    match self.skipped_frames.judge(errno) {
                        Ok(true) => {}
                        Ok(false) => {
                            self.ready = false;
                            self.must_check = std::mem::take(&mut self.maybe_error) || read == 0;
                            break;
                        }
                        Err(error) => return self.fail(error),
                    }
                }
            }
        }
        Ok(())
    }

    /// Marks the queue as failed. Returns the error the first time only.
    fn fail(&mut self, error: QueueError) -> Result<(), QueueError> {
        if std::mem::replace(&mut self.failed, true) { Ok(()) } else { Err(error) }
    }

    /// Returns the next received frame, in order of arrival.
    pub fn next_frame(&mut self) -> Option<Frame> {
        self.received.pop_front()
    }

    /// Takes a frame's slot back.
    pub fn recycle(&mut self, frame: Frame) {
        let Frame { buffers, slot } = frame;
        self.free.push(whole(&self.thread_mapping, buffers, slot));
    }

    /// Submits reads if frames may wait. They go to the kernel with the other operations of the
    /// turn.
    pub fn ask(&mut self, context: &mut Context<'_>) {
        if self.direct || !self.has_work() {
            return;
        }
        self.ready = false;
        for _ in 0..self.batch.next() {
            let Some(Frame { buffers, slot }) = self.free.pop() else { break };
            let op = IoOp::Take { file: self.file.clone(), buffers };
            context.submit(&self.reads, op, slot.into());
            self.asked += 1;
        }
    }

    /// Sends a frame that begins with its header: at the end of the turn, in the order of the
    /// calls. [`Self::next_sent`] returns the result.
    pub fn send(&mut self, context: &mut Context<'_>, buffers: Buffers, tag: u64) {
        if self.failed {
            self.sent.push_back(Sent { tag, buffers, outcome: Err(SendError::Gone) });
            return;
        }
        let file = self.file.clone();
        let op = IoOp::Write { file, offset: 0, buffers, durable: false, worker: false };
        context.submit(&self.writes, op, tag);
    }

    /// Returns the next frame that was sent or lost.
    pub fn next_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }
}

/// Returns a whole slot, in a list with capacity for one piece.
fn whole(thread_mapping: &ThreadMapping, mut buffers: Buffers, slot: u16) -> Frame {
    buffers.clear();
    // The mapping has space for every slot.
    let _fits = buffers.append_mapping(thread_mapping, usize::from(slot) * SLOT_BYTES, SLOT_BYTES);
    Frame { buffers, slot }
}
