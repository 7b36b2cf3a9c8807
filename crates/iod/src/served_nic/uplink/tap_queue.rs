//! Queue of a TAP device, on the reactor that owns it: source and sink of frames for a port.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::{Buffers, MemoryError};
use net::Reason;
use net::frame::PREFIX_BYTES;
use net::header::HEADER_BYTES;
use nic::{
    EgressFrame, FrameBuffer, FrameSink, HostQueueParts, Hub, IngressFrame, PortIncarnation,
};
use reactor::{Context, PollOutcome, Poller};
use tap::{Queue, QueueError, SendError, Sent};

use super::UplinkExit;

/// Creates both sides of the queue `fd`, for the poller that is being created. Nothing is read from
/// the host before [`TapReader::unquiesce`].
///
/// # Errors
/// There is no memory for frames.
pub(super) fn make(
    context: &mut Context<'_>,
    hub: Rc<RefCell<Hub>>,
    port_incarnation: PortIncarnation,
    fd: Arc<OwnedFd>,
    uplink_exit: Arc<UplinkExit>,
) -> io::Result<HostQueueParts<TapReader>> {
    let tap_queue = TapQueue::new(context, fd).map_err(io::Error::other)?;
    let tap_queue = Rc::new(RefCell::new(tap_queue));
    let frame_sink: Rc<RefCell<dyn FrameSink>> = tap_queue.clone();
    Ok(HostQueueParts {
        inlet: TapReader { tap_queue, hub, port_incarnation, uplink_exit },
        frame_sink,
    })
}

/// Most bytes queued for the host: as many as a link between reactors holds.
const ROOM_BYTES: usize = 2 << 20;

/// The queue, with memory for outgoing frames. Incoming frames have their memory in `queue`.
struct TapQueue {
    queue: Queue,
    frame_buffer: FrameBuffer,
    /// Unused lists. There is one for each frame that fits.
    spare: Vec<Buffers>,
    /// Frames accepted since the last flush, with their numbers in the store.
    unsent: Vec<(Buffers, u64)>,
    /// Drop reasons of accepted frames that were lost, to be counted.
    lost: Vec<Reason>,
    /// Error that stopped the queue, until it is reported.
    error: Option<QueueError>,
    failed: bool,
}

impl TapQueue {
    fn new(context: &mut Context<'_>, fd: Arc<OwnedFd>) -> Result<Self, MemoryError> {
        let mut queue = Queue::new(context, fd)?;
        queue.set_paused(true);
        Ok(Self {
            queue,
            frame_buffer: FrameBuffer::new(ROOM_BYTES)?,
            spare: (0..FrameBuffer::FRAMES_MAX).map(|_| Buffers::with_capacity(1)).collect(),
            unsent: Vec::with_capacity(FrameBuffer::FRAMES_MAX),
            lost: Vec::with_capacity(FrameBuffer::FRAMES_MAX),
            error: None,
            failed: false,
        })
    }

    /// Collects completions. Only completed frames make room for more.
    fn collect(&mut self, context: &mut Context<'_>) {
        if let Err(error) = self.queue.reap(context) {
            (self.error, self.failed) = (Some(error), true);
        }
        while let Some(Sent { tag, buffers, outcome }) = self.queue.next_sent() {
            self.frame_buffer.give_back(tag);
            self.spare.push(buffers);
            self.lost.extend(outcome.err().map(reason));
        }
    }

    /// Copies a frame to a buffer of its own. Returns false if there is none.
    fn store(&mut self, frame: &EgressFrame<'_>) -> bool {
        let mut list = self.spare.pop().unwrap_or_default();
        match self.frame_buffer.keep(frame, &mut list) {
            Some(stored_frame) => self.unsent.push((list, stored_frame.number)),
            None => {
                self.spare.push(list);
                return false;
            }
        }
        true
    }
}

impl FrameSink for TapQueue {
    fn deliver(&mut self, frame: &EgressFrame<'_>, _: &mut usize) -> Result<(), Reason> {
        if self.failed {
            return Err(Reason::ReceiverClosed);
        }
        if self.store(frame) { Ok(()) } else { Err(Reason::NoBuffer) }
    }

    fn flush(&mut self, context: &mut Context<'_>) {
        for (list, number) in self.unsent.drain(..) {
            self.queue.send(context, list, number);
        }
        // Other pollers may send before the reader's turn, and need room.
        self.collect(context);
    }
}

/// Returns the drop reason of a frame that the kernel refused.
fn reason(send_error: SendError) -> Reason {
    match send_error {
        SendError::Down | SendError::Gone => Reason::ReceiverClosed,
        SendError::Full => Reason::NoBuffer,
        SendError::Refused(_) => Reason::HostRefused,
    }
}

/// Reader of the frames that the host sends.
pub(super) struct TapReader {
    /// Borrowed for one step at a time, because the hub, called in between, passes frames to it.
    tap_queue: Rc<RefCell<TapQueue>>,
    hub: Rc<RefCell<Hub>>,
    port_incarnation: PortIncarnation,
    uplink_exit: Arc<UplinkExit>,
}

impl TapReader {
    /// Reads frames of the host again.
    pub(super) fn unquiesce(&mut self) {
        self.tap_queue.borrow_mut().queue.set_paused(false);
    }

    /// Stops reading from the host, and forwards the frames that were read. Returns false while the
    /// kernel still has reads in flight.
    pub(super) fn rest(&mut self, context: &mut Context<'_>) -> bool {
        self.tap_queue.borrow_mut().queue.set_paused(true);
        self.collect_completions(context);
        while self.bring(context) {}
        self.tap_queue.borrow().queue.has_no_reads()
    }

    /// Writes pending frames to the host. Returns false while the kernel still has some of them.
    pub(super) fn has_given(&mut self, context: &mut Context<'_>) -> bool {
        let mut tap_queue = self.tap_queue.borrow_mut();
        tap_queue.flush(context);
        tap_queue.frame_buffer.is_empty()
    }

    /// Collects completions. Reports a failure once.
    fn collect_completions(&self, context: &mut Context<'_>) {
        let mut tap_queue = self.tap_queue.borrow_mut();
        tap_queue.collect(context);
        if let Some(error) = tap_queue.error.take() {
            self.uplink_exit.fail(error);
        }
    }

    /// Forwards received frames, as many as one turn allows. Returns whether there were any.
    fn bring(&self, context: &mut Context<'_>) -> bool {
        let now_ns = context.now_ns();
        let mut hub = self.hub.borrow_mut();
        for reason in self.tap_queue.borrow_mut().lost.drain(..) {
            hub.count_late_drop(self.port_incarnation.port(), reason);
        }
        for _ in 0..self.tap_queue.borrow_mut().queue.take_skipped() {
            hub.refuse(self.port_incarnation.port(), Reason::HostLost);
        }
        let mut received = false;
        while !(received && hub.is_spent()) {
            let next = self.tap_queue.borrow_mut().queue.next_frame();
            let Some(mut frame) = next else { break };
            self.pass(&mut hub, frame.buffers(), now_ns);
            self.tap_queue.borrow_mut().queue.recycle(frame);
            received = true;
        }
        if received {
            hub.flush(context);
        }
        received
    }

    /// Forwards one frame. The kernel wrote it to private memory of this process.
    fn pass(&self, hub: &mut Hub, body: &mut Buffers, now_ns: u64) {
        let port = self.port_incarnation.port();
        let Some(header) = body.take_front::<HEADER_BYTES>() else {
            return hub.refuse(port, Reason::ShortHeader);
        };
        let mut prefix = [0; PREFIX_BYTES];
        let copied = body.peek(&mut prefix);
        body.advance(copied);
        let prefix = prefix.get(..copied).unwrap_or_default();
        hub.forward(
            port,
            &IngressFrame {
                header: &header,
                prefix,
                body,
                may: &self.port_incarnation.tx_offloads(),
            },
            now_ns,
        );
    }
}

impl Poller for TapReader {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        self.collect_completions(context);
        let received = self.bring(context);
        self.tap_queue.borrow_mut().queue.ask(context);
        // Completed reads make the poller hot again.
        if received { PollOutcome::Busy } else { PollOutcome::Idle }
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        self.tap_queue.borrow().queue.has_work()
    }

    fn on_kick(&mut self, error: bool) {
        self.tap_queue.borrow_mut().queue.kicked(error);
    }
}

#[cfg(test)]
mod tests;
