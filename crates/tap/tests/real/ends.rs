//! Queues on a reactor. Frames of one queue go to the queue of another device, or are dropped.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memory::{Buffers, MemoryError};
use net::frame::Frame;
use net::header::{HEADER_BYTES, Header, Offloads};
use reactor::{Context, PollOutcome, Poller, PollerId, Reactor};
use tap::{Queue, QueueError, SendError, Tap};

/// Longer than any step of these tests.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// Events of a queue.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// First bytes of each frame with its header, and the length of both.
    pub(super) frames: Vec<(Vec<u8>, usize)>,
    pub(super) errors: Vec<QueueError>,
    pub(super) skipped: u64,
    pub(super) sent: Vec<(u64, Result<(), SendError>)>,
}

impl Seen {
    /// Returns the frames, parsed as the switch does.
    pub(super) fn parsed(&self) -> Vec<(Frame<'_>, Header)> {
        fn parse((bytes, len): &(Vec<u8>, usize)) -> (Frame<'_>, Header) {
            let frame = Frame::parse(&bytes[HEADER_BYTES..], len - HEADER_BYTES).unwrap();
            let header = Header::parse(bytes, &frame, Offloads::KERNEL).unwrap();
            (frame, header)
        }
        self.frames.iter().map(parse).collect()
    }
}

/// A queue on a reactor.
struct End {
    queue: Queue,
    other: Option<PollerId>,
    seen: Arc<Mutex<Seen>>,
    changed: Sender<()>,
}

impl Poller for End {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        let mut seen = self.seen.lock().unwrap();
        let before = (seen.errors.len(), seen.frames.len(), seen.sent.len());
        if let Err(error) = self.queue.reap(context) {
            seen.errors.push(error);
        }
        seen.skipped += self.queue.take_skipped();
        while let Some(mut frame) = self.queue.next_frame() {
            let buffers = frame.buffers();
            let mut first = vec![0; buffers.len().min(HEADER_BYTES + net::frame::PREFIX_BYTES)];
            buffers.peek(&mut first);
            seen.frames.push((first, buffers.len()));
            let copy = Buffers::alloc(buffers.len()).unwrap();
            copy.copy_from_buffers(buffers);
            if let Some(other) = self.other {
                let send = |end: &mut End, context: &mut Context<'_>| {
                    end.queue.send(context, copy, 0);
                };
                context.with_poller(other, send).unwrap();
            }
            self.queue.recycle(frame);
        }
        while let Some(sent) = self.queue.next_sent() {
            seen.sent.push((sent.tag, sent.outcome));
        }
        self.queue.ask(context);
        if before == (seen.errors.len(), seen.frames.len(), seen.sent.len()) {
            return PollOutcome::Idle;
        }
        let _nobody_waits = self.changed.send(());
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        self.queue.has_work()
    }

    fn on_kick(&mut self, error: bool) {
        self.queue.kicked(error);
    }
}

/// Checks that the reactor sleeps and has completed all its operations.
pub(super) fn at_rest(reactor: &Reactor) {
    reactor.handle().call(|_| ()).unwrap();
    let before = reactor.handle().counters().sleeps();
    std::thread::sleep(Duration::from_millis(50));
    let after = reactor.handle().counters().sleeps();
    assert!(after - before <= 1, "{before} {after}");
}

/// A queue that the test observes.
pub(super) struct Watched {
    id: PollerId,
    seen: Arc<Mutex<Seen>>,
    changes: Receiver<()>,
}

impl Watched {
    /// Places queue `number` of a device on a reactor.
    pub(super) fn new(reactor: &Reactor, tap: &Tap, number: usize) -> Self {
        Self::of(reactor, tap.queue(number).unwrap())
    }

    /// Places a queue with this descriptor on a reactor.
    pub(super) fn of(reactor: &Reactor, fd: Arc<OwnedFd>) -> Self {
        Self::kicked_by(reactor, fd.clone(), Some(fd))
    }

    /// Places a queue on a reactor that does not watch its descriptor. It reads at first, and then
    /// only on its own account.
    pub(super) fn deaf(reactor: &Reactor, fd: Arc<OwnedFd>) -> Self {
        Self::kicked_by(reactor, fd, None)
    }

    fn kicked_by(reactor: &Reactor, fd: Arc<OwnedFd>, kick: Option<Arc<OwnedFd>>) -> Self {
        let (changed, changes) = channel();
        let seen = Arc::<Mutex<Seen>>::default();
        let twin = seen.clone();
        let make = move |context: &mut Context<'_>| {
            context.add_poller(kick, |context| {
                let queue = Queue::new(context, fd)?;
                Ok::<_, MemoryError>(End { queue, other: None, seen: twin, changed })
            })
        };
        let id = reactor.handle().call(make).unwrap().unwrap();
        Self { id, seen, changes }
    }

    /// Forwards the frames of each of both queues to the other.
    pub(super) fn join(&self, reactor: &Reactor, other: &Self) {
        for (one, other) in [(self.id, other.id), (other.id, self.id)] {
            let set = move |context: &mut Context<'_>| {
                context.with_poller(one, |end: &mut End, _| end.other = Some(other))
            };
            reactor.handle().call(set).unwrap().unwrap();
        }
    }

    /// Sends bytes unchanged.
    pub(super) fn send(&self, reactor: &Reactor, bytes: &[u8], tag: u64) {
        let (id, bytes) = (self.id, bytes.to_vec());
        let send = move |context: &mut Context<'_>| {
            context.with_poller(id, |end: &mut End, context| {
                let buffers = Buffers::alloc(bytes.len()).unwrap();
                buffers.write(&bytes);
                end.queue.send(context, buffers, tag);
            })
        };
        reactor.handle().call(send).unwrap().unwrap();
    }

    /// Waits until `enough` returns a value for the events of the queue.
    pub(super) fn until<R>(&self, mut enough: impl FnMut(&mut Seen) -> Option<R>) -> R {
        loop {
            if let Some(result) = enough(&mut self.seen.lock().unwrap()) {
                return result;
            }
            if self.changes.recv_timeout(LONG).is_err() {
                let seen = self.seen.lock().unwrap();
                let (errors, sent) = (&seen.errors, &seen.sent);
                panic!("{} frames, {errors:?}, {sent:?}", seen.frames.len());
            }
        }
    }
}
