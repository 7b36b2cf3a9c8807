//! Common parts of all queues: ring, notifications, guest memory.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use error_causes::error_chain;
use memory::Table;
use net::header::HEADER_BYTES;
use net::port::PortId;
use reactor::{Context, PeerNotifier};
use virtq::{BrokenRingRecord, Chain, Popped, Queue, QueueConfig, QueueStart, RingError};

/// Requests that are popped at once, so that their first bytes are prefetched before they are
/// accessed.
pub(crate) const AHEAD: usize = 32;
/// Bytes of each request that are prefetched: header and frame of a small one, headers of a large
/// one.
pub(crate) const FETCHED_BYTES: usize = HEADER_BYTES + 64;
/// Bytes of the next request that are prefetched while one is copied: a full frame of one segment.
pub(crate) const WHOLE_BYTES: usize = 1536;

/// Callback for a session that cannot continue. It runs on the reactor's thread, at most once per
/// queue.
pub type FaultHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// Receivers of a ring's faults.
pub(crate) struct FaultReporter {
    /// Ends the session.
    pub(crate) session: FaultHandler,
    /// Tells reports that the driver has broken the ring.
    pub(crate) broken_ring: Arc<BrokenRingRecord>,
}

/// Purpose of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// The guest receives frames.
    Receive,
    /// The guest sends frames.
    Transmit,
    /// The guest sends commands.
    Control,
}

/// Operations on a queue of any kind on its reactor.
pub(crate) trait ReactorQueue {
    /// Stops the queue; returns the used index, at which a successor continues.
    fn stop(&mut self, context: &mut Context<'_>) -> u16;

    /// Locates the ring in a new memory table, and abandons the buffers of the old one.
    ///
    /// # Errors
    /// The new table does not contain the ring; the queue has failed then.
    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError>;

    /// Replaces the call descriptor, and calls once: a call may have been lost in between.
    fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>);
}

/// Ring whose chains complete in order.
pub(crate) struct InOrderRing {
    pub(crate) queue: Queue,
    config: QueueConfig,
    port: PortId,
    index: u16,
    call: Option<PeerNotifier>,
    err: Option<PeerNotifier>,
    /// True if the ring broke since the front-end was last notified.
    err_pending: bool,
    fault_reporter: FaultReporter,
    /// Number of truncated mappings at the last check.
    faults: usize,
    /// Chains with an address outside memory.
    outside_chains: u64,
}

impl InOrderRing {
    /// Creates a ring and opens notifiers for the poller that is being made.
    ///
    /// # Errors
    /// The ring is not usable.
    pub(crate) fn new(
        port: PortId,
        start: QueueStart,
        fault_reporter: FaultReporter,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let faults = memory::sigbus::faults();
        let queue = Queue::in_order(start.ring, start.table)?;
        let call = start.call.map(|fd| context.open_notifier(fd));
        let err = start.err.map(|fd| context.open_notifier(fd));
        let (config, index) = (start.ring, start.index);
        let err_pending = false;
        let outside_chains = 0;
        let ring = Self {
            queue,
            config,
            port,
            index,
            call,
            err,
            err_pending,
            fault_reporter,
            faults,
            outside_chains,
        };
        if ring.queue.continued() {
            // The process that served the ring before may have died before it could call.
            ring.signal(context);
        }
        Ok(ring)
    }

    /// Pops the next request as a chain. Returns `None` from the moment when the ring breaks the
    /// rules.
    pub(crate) fn pop_chain(&mut self) -> Option<Chain> {
        self.queue.pop().unwrap_or_else(|error| {
            self.broken(&error);
            None
        })
    }

    /// Pops the next requests, at most [`AHEAD`], into `into`, and prefetches the first `bytes`
    /// bytes of each. Pops nothing from the moment when the ring breaks the rules.
    pub(crate) fn pop_many(&mut self, bytes: usize, into: &mut VecDeque<Popped>) {
        if let Err(error) = self.queue.pop_many::<HEADER_BYTES>((AHEAD, bytes), into) {
            self.broken(&error);
        }
    }

    /// Completes a request, into which `written` bytes were written.
    #[inline]
    pub(crate) fn push(&mut self, popped: Popped, written: u32) {
        match popped {
            Popped::Piece(single_buffer) => self.queue.push_single(single_buffer, written),
            Popped::Chain(chain) => self.queue.push(chain, written),
        }
    }

    /// Ends the batch: publishes the completed requests to the guest, and calls it if it wants
    /// that.
    pub(crate) fn publish(&mut self, context: &mut Context<'_>) {
        if self.queue.publish() {
            self.signal(context);
        }
        if std::mem::take(&mut self.err_pending)
            && let Some(err) = &self.err
        {
            context.notify(err);
        }
        self.check_memory();
    }

    /// Locates the ring in a new memory table. No popped request may be pending.
    ///
    /// # Errors
    /// The new table does not contain the ring; the queue has failed then.
    pub(crate) fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        if self.queue.failed() {
            return Ok(());
        }
        // All completed requests are published, so the ring itself has the index to continue at.
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
            context.close_notifier(former);
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
        if self.queue.faulted() {
            // A hole reads as zeroes, which break the ring's rules. `check_memory` ends the session.
            return;
        }
        let (port, queue) = (self.port.0, self.index);
        let cause = error_chain(error);
        self.fault_reporter.broken_ring.record(&cause);
        tracing::error!(port, queue, error = cause, "{}", error.summary());
        self.err_pending = true;
    }

    /// Logs the address outside memory of a chain, if it has one. Returns whether it has.
    #[cold]
    pub(crate) fn report_outside(&mut self, chain: &Chain) -> bool {
        let Some(outside) = chain.outside() else { return false };
        self.outside_chains += 1;
        // A guest can make any number of them, and each line has a cost.
        if self.outside_chains.is_power_of_two() {
            let (port, queue, unused) = (self.port.0, self.index, self.outside_chains);
            tracing::error!(port, queue, unused, "a buffer is not used: {outside}");
        }
        true
    }

    /// Ends the session if its memory has a hole.
    fn check_memory(&mut self) {
        let faults = memory::sigbus::faults();
        if faults == self.faults {
            return;
        }
        self.faults = faults;
        if self.queue.faulted() {
            self.queue.fail();
            (self.fault_reporter.session)(memory::sigbus::HOLE);
        }
    }
}
