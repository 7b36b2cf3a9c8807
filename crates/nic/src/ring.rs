//! What receive and transmit queues have in common: a ring, its signals, its memory.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use net::header::HEADER_BYTES;
use net::port::PortId;
use reactor::{Context, PeerNotifier};
use virtq::{Chain, Popped, Queue, QueueConfig, QueueStart, RingError};

/// Requests that are popped at once, so that their first bytes are on the way to this CPU before they are
/// touched.
pub(crate) const AHEAD: usize = 32;
/// Bytes of each that come closer then: header and frame of a small one, headers of a large one.
pub(crate) const FETCHED_BYTES: usize = HEADER_BYTES + 64;
/// Bytes that come closer of the next one, while one is copied: a full frame of one segment.
pub(crate) const WHOLE_BYTES: usize = 1536;

/// Called on the reactor's thread, at most once per queue, when a session cannot go on.
pub type FaultHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// What a queue can be told on its reactor, whatever it is for.
pub(crate) trait ReactorQueue {
    /// Ends; returns where a successor goes on, which is the used index.
    fn stop(&mut self, context: &mut Context<'_>) -> u16;

    /// Finds its ring in a new memory table, and gives up what it has of the old one.
    ///
    /// # Errors
    /// The new table does not hold it; it has failed then.
    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError>;

    /// Replaces the call descriptor, and calls once: a call may have been lost in between.
    fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>);
}

/// A ring whose chains complete in order.
pub(crate) struct InOrderRing {
    pub(crate) queue: Queue,
    config: QueueConfig,
    port: PortId,
    index: u16,
    call: Option<PeerNotifier>,
    err: Option<PeerNotifier>,
    /// It was broken since the front-end was told last.
    untold: bool,
    fault: FaultHandler,
    /// Mappings that had been truncated under us when this was last looked at.
    faults: usize,
}

impl InOrderRing {
    /// Opens bells of the poller that is being made.
    ///
    /// # Errors
    /// The ring is not usable.
    pub(crate) fn new(
        port: PortId,
        start: QueueStart,
        fault: FaultHandler,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let faults = memory::sigbus::faults();
        let queue = Queue::in_order(start.ring, start.table)?;
        let call = start.call.map(|fd| context.open_notifier(fd));
        let err = start.err.map(|fd| context.open_notifier(fd));
        let (config, index) = (start.ring, start.index);
        let ring = Self { queue, config, port, index, call, err, untold: false, fault, faults };
        if ring.queue.continued() {
            // Whoever served it before may have died before it could call.
            ring.signal(context);
        }
        Ok(ring)
    }

    /// The next request, as a chain whatever it is. A ring that breaks the rules yields none from then
    /// on.
    pub(crate) fn pop_chain(&mut self) -> Option<Chain> {
        self.queue.pop().unwrap_or_else(|error| {
            self.broken(&error);
            None
        })
    }

    /// Adds the next requests, [`AHEAD`] at most, to `into`, of each of which so many bytes are on
    /// their way to this CPU then. A ring that breaks the rules yields none from then on.
    pub(crate) fn pop_many(&mut self, bytes: usize, into: &mut VecDeque<Popped>) {
        if let Err(error) = self.queue.pop_many::<HEADER_BYTES>((AHEAD, bytes), into) {
            self.broken(&error);
        }
    }

    /// Completes one, into which `written` bytes were written.
    #[inline]
    pub(crate) fn push(&mut self, popped: Popped, written: u32) {
        match popped {
            Popped::Piece(single_buffer) => self.queue.push_piece(single_buffer, written),
            Popped::Chain(chain) => self.queue.push(chain, written),
        }
    }

    /// The batch is over: shows the guest what was completed, and calls it if it wants to be.
    pub(crate) fn publish(&mut self, context: &mut Context<'_>) {
        if self.queue.publish() {
            self.signal(context);
        }
        if std::mem::take(&mut self.untold)
            && let Some(err) = &self.err
        {
            context.notify(err);
        }
        self.check_memory();
    }

    /// The same ring in a new memory table, of which nothing is popped.
    ///
    /// # Errors
    /// The new table does not hold it; it has failed then.
    pub(crate) fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        if self.queue.failed() {
            return Ok(());
        }
        // All that was completed is published, so the ring itself says where it goes on.
        match Queue::in_order(self.config, table) {
            Ok(queue) => {
                self.queue = queue;
                Ok(())
            }
            Err(error) => {
                self.queue.fail();
                Err(error)
            }
        }
    }

    /// Replaces the call descriptor, and calls once: a call may have been lost in between.
    pub(crate) fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        if let Some(former) = self.call.take() {
            context.close_bell(former);
        }
        self.call = call.map(|fd| context.open_notifier(fd));
        self.signal(context);
    }

    fn signal(&self, context: &mut Context<'_>) {
        if let Some(call) = &self.call {
            context.notify(call);
        }
    }

    #[cold]
    fn broken(&mut self, error: &RingError) {
        let (port, queue) = (self.port.0, self.index);
        let mut text = error.to_string();
        let mut next = std::error::Error::source(error);
        while let Some(cause) = next {
            text = format!("{text}: {cause}");
            next = cause.source();
        }
        tracing::error!(
            port,
            queue,
            error = text,
            "the guest's driver broke the ring; it must reset the device"
        );
        self.untold = true;
    }

    /// Ends the session when its memory went away under us.
    fn check_memory(&mut self) {
        let faults = memory::sigbus::faults();
        if faults == self.faults {
            return;
        }
        self.faults = faults;
        if self.queue.faulted() {
            self.queue.fail();
            (self.fault)("the front-end truncated its memory while it was in use");
        }
    }
}
