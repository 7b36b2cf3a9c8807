//! A ring on its reactor.

mod requests;
mod steps;
mod stop;
mod trial;

pub use trial::TrialStart;

#[cfg(feature = "stages")]
pub(crate) use requests::{FinishedRequest, complete_to_guest};

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use disk::{Channel, Completion, Request};
use error_causes::error_chain;
use memory::Table;
use reactor::{Context, OwnerId, PeerNotifier, PollControl, PollOutcome, Poller, WaitTarget};
use virtq::{Chain, Inflight, Queue, QueueStart, RingError};

use crate::device::{FaultHandler, Shared};
use crate::latency::{InFlightTable, LatencyRecorder};
use crate::parse::Rules;
use crate::stats::QueueStats;
use crate::throttled_request::ThrottledRequest;
use steps::Steps;
use stop::Stalled;
use trial::Trial;

/// A ring on its reactor: pops, parses, submits, reaps, completes.
pub(crate) struct BlkQueue {
    shared: Arc<Shared>,
    stats: Arc<QueueStats>,
    fault: FaultHandler,
    index: u16,
    queue: Queue,
    channel: Box<dyn Channel>,
    call: Option<PeerNotifier>,
    err: Option<PeerNotifier>,
    rules: Rules,
    epoch: u64,
    /// Whether the driver does not kick, so that the queue must poll.
    kickless: bool,
    in_flight: InFlightTable,
    latency_recorder: LatencyRecorder,
    /// The request that the caps hold back. The queue pops nothing before it is released.
    throttled_request: ThrottledRequest,
    /// The request that the full channel returned. The queue pops nothing before it is submitted.
    rejected_request: Option<Request>,
    done: Vec<Completion>,
    steps: Steps,
    /// Bytes of data popped in this turn.
    turn_bytes: u64,
    faults: usize,
    /// Requests that failed because memory was not shared, or could not be reached.
    outside_requests: u64,
    stopping: bool,
    stalled: Stalled,
    stop_reply: Option<SyncSender<u16>>,
    /// Whether the front-end has an in-flight region. A region from a handover does not count:
    /// nobody preserves it.
    has_inflight_region: bool,
    /// Requests that waited for space on the storage when the queue was stopped. They stay in an
    /// in-flight region and are submitted again at the next start.
    stalled_chains: Vec<Chain>,
    /// Trial of the requests that a process left which died by its own fault.
    trial: Option<Trial>,
    /// Whether the queue is abandoned: it reports no completions.
    abandoned: bool,
    /// Whether the last statistics are written. A successor may write from then on.
    stats_closed: bool,
}

impl BlkQueue {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stats: Arc<QueueStats>,
        start: QueueStart,
        kickless: bool,
        fault: FaultHandler,
        trial: Option<TrialStart>,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let faults = memory::sigbus::faults();
        let steps = Steps::new(start.ring.event_idx);
        let has_inflight_region = start.inflight.as_ref().is_some_and(Inflight::is_shared);
        let queue = Queue::new(start.ring, start.table, start.inflight)?;
        let trial = Trial::new(trial, queue.recovering());
        let channel = shared.disk.open_channel(context);
        let epoch = shared.epoch.load(Ordering::Acquire);
        let rules = Rules { geometry: shared.disk.geometry(), features: start.features };
        let in_flight = InFlightTable::new(queue.size());
        let latency_recorder = LatencyRecorder::new(shared.record, shared.label);
        stats.recorder.starts(context.reactor());
        let mut queue = Self {
            stats,
            fault,
            index: start.index,
            queue,
            channel,
            call: start.call.map(|fd| context.open_notifier(fd)),
            err: start.err.map(|fd| context.open_notifier(fd)),
            rules,
            epoch,
            kickless,
            shared,
            in_flight,
            latency_recorder,
            throttled_request: ThrottledRequest::new(context),
            rejected_request: None,
            done: Vec::new(),
            steps,
            turn_bytes: 0,
            faults,
            outside_requests: 0,
            stopping: false,
            stalled: Stalled::Wait,
            stop_reply: None,
            has_inflight_region,
            stalled_chains: Vec::new(),
            trial,
            abandoned: false,
            stats_closed: false,
        };
        queue.take_over(context);
        Ok(queue)
    }

    /// Continues a ring that another process has served.
    fn take_over(&mut self, context: &mut Context<'_>) {
        let resubmitted = self.queue.resubmitted();
        if resubmitted > 0 {
            self.stats.resubmitted(resubmitted.into());
            let (disk, queue) = (&self.shared.id, self.index);
            tracing::info!(disk, queue, resubmitted, "requests of the former process resubmitted");
        }
        if self.queue.continued() {
            // The former process may have published completions and died before it could call.
            self.signal(context);
        }
    }

    pub(crate) fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.queue.set_memory(table)
    }

    pub(crate) fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        if let Some(former) = self.call.take() {
            context.close_notifier(former);
        }
        self.call = call.map(|fd| context.open_notifier(fd));
        self.signal(context);
    }

    /// Publishes completions to the guest, and calls it if it wants a call.
    fn publish(&mut self, context: &mut Context<'_>) {
        if self.queue.publish_without_call() {
            self.stats.publish();
        }
        let wanted = self.queue.publish();
        let now = self.latency_recorder.completion_time(context);
        if wanted {
            self.signal(context);
            // The guest wakes up while the rest of the turn runs.
            context.flush_if_alone();
        }
        let stats = (&self.stats.stages, &self.stats.recorder);
        self.latency_recorder.shown(now, stats, &self.in_flight, self.queue.in_flight());
    }

    /// Publishes the completions of a turn that goes on. Calls the guest if it wants a call and may
    /// sleep: one that has just added requests is awake and may find the completions by itself. The
    /// next step, or the end of the turn, decides again.
    #[inline(never)]
    fn publish_step(&mut self, context: &mut Context<'_>) {
        if self.queue.publish_without_call() {
            self.stats.publish();
        }
        if !self.queue.looks_active() && self.queue.publish() {
            self.signal(context);
            context.flush_if_alone();
        }
    }

    fn signal(&mut self, context: &mut Context<'_>) {
        if let Some(call) = &self.call {
            // If the eventfd is full, the guest has not read earlier calls.
            context.notify(call);
            self.stats.call();
        }
    }

    #[cold]
    fn broken(&self, context: &mut Context<'_>, error: &RingError) {
        if self.queue.faulted() {
            // A hole reads as zeroes, which break the ring's rules. `check_memory` ends the session.
            return;
        }
        let (disk, queue) = (&self.shared.id, self.index);
        let cause = error_chain(error);
        self.stats.broken_ring.record(&cause);
        tracing::error!(disk, queue, error = %cause, "{}", error.summary());
        if let Some(err) = &self.err {
            context.notify(err);
        }
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
            (self.fault)(memory::sigbus::HOLE);
        }
    }
}

impl Poller for BlkQueue {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        self.latency_recorder.turn_begins();
        let mut worked = self.reap(context);
        worked |= self.submit_batch(context);
        // Check even without work: the polled memory may have a hole.
        self.check_memory();
        if worked || self.stopping {
            self.publish(context);
        }
        if self.stopping {
            self.leave_stalled(context);
        }
        let unfinished =
            usize::from(self.queue.in_flight()).saturating_sub(self.stalled_chains.len());
        if self.stopping && unfinished == 0 && !self.has_recovered() {
            if !self.stalled_chains.is_empty() {
                // A failed ring pops nothing more, and its in-flight records stay.
                self.queue.fail();
                self.stalled_chains.drain(..).for_each(|chain| self.queue.push(chain, 0));
            }
            if let Some(answer) = self.stop_reply.take() {
                // The last call must be sent before the front-end learns that the ring has
                // stopped. A successor on another reactor writes the same statistics as soon as
                // it gets the answer.
                context.flush();
                self.end_records();
                let _ = answer.send(self.queue.next_avail());
            }
            return PollOutcome::Gone;
        }
        if worked {
            return PollOutcome::Busy;
        }
        self.latency_recorder.rests(&self.stats.stages);
        PollOutcome::Idle
    }

    fn on_runnable(&mut self) {
        self.latency_recorder.wakes();
        self.queue.suppress();
    }

    fn arm(&mut self) -> bool {
        self.latency_recorder.flush_counts(&self.stats.stages);
        // Kicks do not help while a request is held back, a trial runs or the queue stops: a
        // completion, a timer or a call wakes it.
        self.rejected_request.is_none()
            && self.trial.is_none()
            && self.throttled_request.is_empty()
            && !self.stopping
            && self.queue.arm()
    }

    fn on_kick(&mut self, _error: bool) {
        self.stats.kick();
    }

    fn always_polls(&self) -> bool {
        self.kickless && !self.queue.failed()
    }

    fn polling(&self) -> Option<&PollControl> {
        Some(&self.stats.poll_control)
    }

    fn waits_for(&self) -> WaitTarget {
        let held = self.rejected_request.is_some() || !self.throttled_request.is_empty();
        if held || self.stopping || self.queue.failed() {
            WaitTarget::Event
        } else if self.queue.in_flight() > 0 {
            WaitTarget::Device
        } else {
            WaitTarget::Driver
        }
    }

    fn label(&self) -> OwnerId {
        self.shared.label
    }
}
