//! One queue as a reactor uses it.

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

/// Bytes of memory for a frame and its header, in whole pages. A frame that fills it is longer than
/// any that a switch takes.
pub const SLOT_BYTES: usize = (HEADER_BYTES + FRAME_MAX as usize).next_multiple_of(4096);
/// Frames that have a place in memory, in the kernel or with their user. The kernel gives memory to
/// those places only that are used, and of each as much as was.
pub const SLOTS: usize = 2 * BATCH_MAX;

/// A frame that came, after its header. It is given back by [`Queue::recycle`], or its place is lost.
#[derive(Debug)]
#[must_use = "its place in memory is given back by recycle"]
pub struct Frame {
    buffers: Buffers,
    slot: u16,
}

impl Frame {
    /// The header and the frame. Only this process has the memory.
    pub fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }
}

/// A frame that was to be sent.
#[derive(Debug)]
pub struct Sent {
    /// What its sender called it.
    pub tag: u64,
    /// Its memory.
    pub buffers: Buffers,
    /// Whether the kernel has taken it.
    pub outcome: Result<(), SendError>,
}

/// One queue of a device, on the reactor that owns it. What it has in the kernel ends with its poller.
#[derive(Debug)]
pub struct Queue {
    file: File,
    reads: CompletionPort,
    writes: CompletionPort,
    thread_mapping: ThreadMapping,
    /// Places that are free, ready to be read into.
    free: Vec<Frame>,
    came: VecDeque<Frame>,
    sent: VecDeque<Sent>,
    op_completion: Vec<OpCompletion>,
    batch: ReadBatch,
    skipped_frames: SkippedFrames,
    /// Reads in the kernel.
    asked: usize,
    /// There may be something: the device said so, or the end was not seen, since it was asked.
    ready: bool,
    /// The driver cannot tell that a read would wait (before Linux 6.4), so frames are read one by
    /// one. Reads that wait in the kernel would be no way: nothing ends them with their poller.
    direct: bool,
    /// It was told something that frames may not be all of.
    doubts: bool,
    /// Whether it has failed is to be seen from the device: nothing has come of what was told.
    looks: bool,
    /// It takes nothing of the device for now.
    rests: bool,
    failed: bool,
}

impl Queue {
    /// A queue for the poller that is being made. The same descriptor should be watched by the
    /// reactor, as the poller's kick.
    ///
    /// # Errors
    /// No memory for frames.
    ///
    /// # Panics
    /// Outside of a poller.
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
            came: VecDeque::with_capacity(SLOTS),
            sent: VecDeque::with_capacity(SLOTS),
            op_completion: Vec::with_capacity(SLOTS),
            batch: ReadBatch::default(),
            skipped_frames: SkippedFrames::default(),
            asked: 0,
            ready: true,
            direct: false,
            doubts: false,
            looks: false,
            rests: false,
            failed: false,
        })
    }

    /// The device says that there is something, or that it has an error: once for each time that it
    /// does.
    pub fn kicked(&mut self, error: bool) {
        // What comes next may be the answer to one time, and the end that of another.
        self.doubts |= error || self.ready;
        self.ready = true;
    }

    /// There may be something that nobody has asked for.
    pub fn has_work(&self) -> bool {
        let may = !self.failed && !self.rests;
        self.ready && may && self.asked == 0 && !self.free.is_empty()
    }

    /// Takes nothing more of the device, or does so again. What was asked for still comes.
    pub fn set_resting(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// Nothing that was asked for is still to come.
    pub fn is_quiet(&self) -> bool {
        self.asked == 0
    }

    /// Frames that the kernel could not hand over, since this was asked last. They are lost, and those
    /// behind them come.
    pub fn take_skipped(&mut self) -> u64 {
        self.skipped_frames.take()
    }

    /// Looks at what has ended.
    ///
    /// # Errors
    /// The queue has failed: told once. What came before is there.
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
        // Whoever only sends learns of the end so.
        if gone {
            self.fail(QueueError::Gone)?;
        }
        if self.direct && self.has_work() {
            self.read(context)?;
        }
        if std::mem::take(&mut self.looks) { self.look(context) } else { Ok(()) }
    }

    /// A device that is deleted wakes its readers just before a read fails. One that was quicker has
    /// found nothing, and is not woken again, but the device tells an error by then.
    fn look(&mut self, context: &Context<'_>) -> Result<(), QueueError> {
        context.count_syscalls(1);
        if self.file.has_error() { self.fail(QueueError::Gone) } else { Ok(()) }
    }

    /// Sorts the reads that have ended, which came in the order in which they were asked for.
    fn sort(&mut self) -> Result<(), QueueError> {
        let (mut frames, ended, mut failure) = (0, self.op_completion.len(), None);
        for op_completion in self.op_completion.drain(..) {
            let outcome = op_completion.outcome();
            let slot = op_completion.tag as u16;
            let mut frame = Frame { buffers: op_completion.buffers.unwrap_or_default(), slot };
            match outcome {
                Ok(bytes) => {
                    frame.buffers.truncate(bytes as usize);
                    self.came.push_back(frame);
                    self.skipped_frames.came();
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
        // If the end was seen, the device tells of what has come after it. A frame that was skipped is
        // not the end: nothing more is told of those behind it.
        self.ready |= frames == ended || self.direct;
        if frames < ended && !self.direct {
            self.looks = std::mem::take(&mut self.doubts) || frames == 0;
        }
        failure.map_or(Ok(()), |error| self.fail(error))
    }

    /// Reads what is there, up to a batch.
    fn read(&mut self, context: &Context<'_>) -> Result<(), QueueError> {
        for read in 0..BATCH_MAX {
            let Some(mut frame) = self.free.pop() else { break };
            context.count_syscalls(1);
            match self.file.read_ready(&frame.buffers) {
                Ok(bytes) => {
                    frame.buffers.truncate(bytes);
                    self.came.push_back(frame);
                    self.skipped_frames.came();
                }
                Err(errno) => {
                    self.free.push(frame);
                    match self.skipped_frames.judge(errno) {
                        Ok(true) => {}
                        Ok(false) => {
                            self.ready = false;
                            self.looks = std::mem::take(&mut self.doubts) || read == 0;
                            break;
                        }
                        Err(error) => return self.fail(error),
                    }
                }
            }
        }
        Ok(())
    }

    /// The first failure is told, and ends everything.
    fn fail(&mut self, error: QueueError) -> Result<(), QueueError> {
        if std::mem::replace(&mut self.failed, true) { Ok(()) } else { Err(error) }
    }

    /// The next frame that came, in their order.
    pub fn next_frame(&mut self) -> Option<Frame> {
        self.came.pop_front()
    }

    /// Takes a frame's place back.
    pub fn recycle(&mut self, frame: Frame) {
        let Frame { buffers, slot } = frame;
        self.free.push(whole(&self.thread_mapping, buffers, slot));
    }

    /// Asks for frames, if there may be some. The kernel is asked with what else the turn submits.
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

    /// Sends a frame, its header before it: at the end of the turn, in the order of the calls. What
    /// has become of it is told by [`Self::next_sent`].
    pub fn send(&mut self, context: &mut Context<'_>, buffers: Buffers, tag: u64) {
        if self.failed {
            self.sent.push_back(Sent { tag, buffers, outcome: Err(SendError::Gone) });
            return;
        }
        let file = self.file.clone();
        let op = IoOp::Write { file, offset: 0, buffers, durable: false, worker: false };
        context.submit(&self.writes, op, tag);
    }

    /// The next frame that was sent or lost.
    pub fn next_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }
}

/// A place as a whole, in a list that has room for one piece.
fn whole(thread_mapping: &ThreadMapping, mut buffers: Buffers, slot: u16) -> Frame {
    buffers.clear();
    // The area has room for every slot.
    let _fits = buffers.append_area(thread_mapping, usize::from(slot) * SLOT_BYTES, SLOT_BYTES);
    Frame { buffers, slot }
}
