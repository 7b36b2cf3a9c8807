//! A queue of a TAP device as a port's inlet and outlet, on the reactor that owns it.

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

/// Makes both sides of the queue that is `fd`, for the poller that is being made. Nothing comes of the
/// host before [`TapReader::unquiesce`].
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

/// Bytes on their way out, at most: as many as a link between reactors holds.
const ROOM_BYTES: usize = 2 << 20;

/// The queue, with memory for what goes out. What comes in has its memory in the queue.
struct TapQueue {
    queue: Queue,
    frame_buffer: FrameBuffer,
    /// Lists that are not in use; there is one for each frame that has room.
    spare: Vec<Buffers>,
    /// Taken since the last flush, with their numbers in the store.
    unsent: Vec<(Buffers, u64)>,
    /// Why frames were lost that were taken: to be counted.
    lost: Vec<Reason>,
    /// Why the queue goes on no more, until it is told.
    error: Option<QueueError>,
    failed: bool,
}

impl TapQueue {
    fn new(context: &mut Context<'_>, fd: Arc<OwnedFd>) -> Result<Self, MemoryError> {
        let mut queue = Queue::new(context, fd)?;
        queue.set_resting(true);
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

    /// Looks at what has ended. Only what the kernel has given back makes room for more.
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

    /// Copies a frame to a place of its own; false if there is none.
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
        // Others may have their turn before the inlet has its own, and want room.
        self.collect(context);
    }
}

/// As what a frame counts that the kernel did not take.
fn reason(send_error: SendError) -> Reason {
    match send_error {
        SendError::Down | SendError::Gone => Reason::ReceiverClosed,
        SendError::Full => Reason::NoBuffer,
        SendError::Refused(_) => Reason::HostRefused,
    }
}

/// Brings what the host sends.
pub(super) struct TapReader {
    /// Borrowed for one step at a time: the hub, called in between, gives frames to it.
    tap_queue: Rc<RefCell<TapQueue>>,
    hub: Rc<RefCell<Hub>>,
    port_incarnation: PortIncarnation,
    uplink_exit: Arc<UplinkExit>,
}

impl TapReader {
    /// Takes what the host sends.
    pub(super) fn go_on(&mut self) {
        self.tap_queue.borrow_mut().queue.set_resting(false);
    }

    /// Takes nothing more of the host, and passes on what was taken; false: the kernel still has some
    /// of that.
    pub(super) fn rest(&mut self, context: &mut Context<'_>) -> bool {
        self.tap_queue.borrow_mut().queue.set_resting(true);
        self.look(context);
        while self.bring(context) {}
        self.tap_queue.borrow().queue.is_quiet()
    }

    /// Gives the host what there is for it; false: the kernel still has some of that.
    pub(super) fn has_given(&mut self, context: &mut Context<'_>) -> bool {
        let mut tap_queue = self.tap_queue.borrow_mut();
        tap_queue.flush(context);
        tap_queue.frame_buffer.is_empty()
    }

    /// Looks at what has ended. A failure is told once.
    fn look(&self, context: &mut Context<'_>) {
        let mut tap_queue = self.tap_queue.borrow_mut();
        tap_queue.collect(context);
        if let Some(error) = tap_queue.error.take() {
            self.uplink_exit.fail(error);
        }
    }

    /// Passes on what has come, as much as one turn may; whether there was any.
    fn bring(&self, context: &mut Context<'_>) -> bool {
        let now_ns = context.now_ns();
        let mut hub = self.hub.borrow_mut();
        for reason in self.tap_queue.borrow_mut().lost.drain(..) {
            hub.count_late_drop(self.port_incarnation.port(), reason);
        }
        for _ in 0..self.tap_queue.borrow_mut().queue.take_skipped() {
            hub.refuse(self.port_incarnation.port(), Reason::HostLost);
        }
        let mut came = false;
        while !(came && hub.is_spent()) {
            let next = self.tap_queue.borrow_mut().queue.next_frame();
            let Some(mut frame) = next else { break };
            self.pass(&mut hub, frame.buffers(), now_ns);
            self.tap_queue.borrow_mut().queue.recycle(frame);
            came = true;
        }
        if came {
            hub.flush(context);
        }
        came
    }

    /// Passes one frame on. The kernel wrote it to memory of this process alone.
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
        self.look(context);
        let came = self.bring(context);
        self.tap_queue.borrow_mut().queue.ask(context);
        // What was asked for makes it hot again when it is there.
        if came { PollOutcome::Busy } else { PollOutcome::Idle }
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
mod steady;
#[cfg(test)]
mod tests;
