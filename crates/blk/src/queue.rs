//! One ring on its reactor.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use disk::{Channel, Completion, IoError, Request, Submitted};
use memory::{Buffers, Table};
use reactor::{Bell, Context, Label, Poller, Turn};
use virtq::{Chain, Queue, QueueStart, RingError};

use crate::capped::Capped;
use crate::device::{Fault, Shared};
use crate::insight::{Class, InFlight, InFlightTable, Times};
use crate::parse::{Parsed, Rules, status_of};
use crate::spec::{ID_BYTES, S_OK};
use crate::stats::QueueStats;

/// Requests popped in one turn, so that the queues of a reactor take turns.
const BATCH: usize = 64;
/// Bytes of data after which a turn ends: disks in memory copy them at once.
const BATCH_BYTES: u64 = 4 << 20;

/// One ring on its reactor: pops, parses, submits, reaps, completes.
pub(crate) struct BlkQueue {
    shared: Arc<Shared>,
    stats: Arc<QueueStats>,
    fault: Fault,
    index: u16,
    queue: Queue,
    channel: Box<dyn Channel>,
    call: Option<Bell>,
    err: Option<Bell>,
    rules: Rules,
    epoch: u64,
    spins: bool,
    in_flight: InFlightTable,
    times: Times,
    /// What the caps hold back: nothing is popped before its turn.
    capped: Capped,
    /// Handed back by the channel: nothing is popped before it is taken.
    held: Option<Request>,
    done: Vec<Completion>,
    /// Bytes of data popped in this turn.
    moved: u64,
    faults: usize,
    stopping: bool,
    /// What waits for room fails, or stays on record.
    giving_up: bool,
    stopped: Option<SyncSender<u16>>,
    /// The front-end keeps a record of what is in flight.
    recorded: bool,
    /// Waited for room on the storage when the queue was stopped: stays on record and is
    /// submitted again at the next start.
    left: Vec<Chain>,
    /// Given up: what ends is not told to anybody.
    zombie: bool,
    /// Somebody else writes the records of this queue.
    silent: bool,
}

impl BlkQueue {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stats: Arc<QueueStats>,
        start: QueueStart,
        kickless: bool,
        fault: Fault,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let faults = memory::sigbus::faults();
        let recorded = start.inflight.is_some();
        let queue = Queue::new(start.ring, start.table, start.inflight)?;
        let channel = shared.disk.open_channel(context);
        let epoch = shared.epoch.load(Ordering::Acquire);
        let rules = Rules { geometry: shared.disk.geometry(), features: start.features };
        let in_flight = InFlightTable::new(queue.size());
        let times = Times::new(shared.record, shared.base, shared.label);
        stats.recorder.starts(context.reactor());
        let mut queue = Self {
            stats,
            fault,
            index: start.index,
            queue,
            channel,
            call: start.call.map(|fd| context.open_bell(fd)),
            err: start.err.map(|fd| context.open_bell(fd)),
            rules,
            epoch,
            spins: shared.spin || kickless,
            shared,
            in_flight,
            times,
            capped: Capped::new(context),
            held: None,
            done: Vec::new(),
            moved: 0,
            faults,
            stopping: false,
            giving_up: false,
            stopped: None,
            recorded,
            left: Vec::new(),
            zombie: false,
            silent: false,
        };
        queue.take_over(context);
        Ok(queue)
    }

    /// Goes on where another has served this ring.
    fn take_over(&mut self, context: &mut Context<'_>) {
        let resubmitted = self.queue.resubmitted();
        if resubmitted > 0 {
            self.stats.resubmitted(resubmitted.into());
            let (disk, queue) = (&self.shared.id, self.index);
            tracing::info!(disk, queue, resubmitted, "requests of a former life go on");
        }
        if self.queue.continued() {
            // It may have completed requests and died before it could call.
            self.signal(context);
        }
    }

    /// Takes no more requests; answers when those in flight have ended, and those that a former
    /// life has left.
    pub(crate) fn stop(&mut self, context: &mut Context<'_>, answer: Option<SyncSender<u16>>) {
        self.stopping = true;
        self.giving_up = true;
        self.stopped = answer;
        self.channel.give_up(context);
    }

    /// As [`Self::stop`], but what waits goes on waiting, and [`Self::go_on`] ends it.
    pub(crate) fn quiet(&mut self, answer: SyncSender<u16>) {
        self.stopping = true;
        self.stopped = Some(answer);
    }

    /// Takes requests again.
    pub(crate) fn go_on(&mut self) {
        self.stopping = false;
        self.stopped = None;
    }

    /// Touches the ring and the guest's signals no more; returns how many requests are in flight,
    /// and the available index behind them. The queue ends when the last of them does.
    pub(crate) fn give_up_ring(&mut self, context: &mut Context<'_>) -> (u16, u16) {
        self.zombie = true;
        self.channel.abandon();
        self.queue.fail();
        for bell in [self.call.take(), self.err.take()].into_iter().flatten() {
            context.close_bell(bell);
        }
        let waiting = self.held.take().or_else(|| self.capped.take());
        if let Some(request) = waiting
            && let Some(entry) = self.in_flight.take(request.tag)
        {
            self.queue.push(entry.chain, 0);
        }
        (self.queue.in_flight(), self.queue.next_avail())
    }

    pub(crate) fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.queue.set_memory(table)
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>, context: &mut Context<'_>) {
        if let Some(former) = self.call.take() {
            context.close_bell(former);
        }
        self.call = call.map(|fd| context.open_bell(fd));
        self.signal(context);
    }

    /// Pops and starts a batch; true when there was something.
    fn take(&mut self, context: &mut Context<'_>) -> bool {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.rules.geometry = self.shared.disk.geometry();
        }
        let mut taken = 0;
        if let Some(request) = self.held.take() {
            self.submit_again(context, request);
            taken += usize::from(self.held.is_none());
        }
        taken += usize::from(self.release(context));
        self.moved = 0;
        let waiting = self.queue.waiting();
        self.times.looked(context, &self.stats.recorder, waiting);
        while taken < BATCH
            && self.moved < BATCH_BYTES
            && self.held.is_none()
            && self.capped.is_empty()
            && (!self.stopping || self.queue.recovering())
        {
            match self.queue.pop() {
                Ok(Some(chain)) => self.begin(context, chain),
                Ok(None) => break,
                Err(error) => self.broken(context, &error),
            }
            taken += 1;
        }
        taken > 0
    }

    /// Parses one chain and starts it.
    fn begin(&mut self, context: &mut Context<'_>, mut chain: Chain) {
        match self.rules.parse(&mut chain) {
            Parsed::Io { kind, offset, len, data, status } => {
                let tag = u32::from(chain.head());
                let class = Class::from(kind);
                let mut stamps = self.times.popped(context, &self.stats.recorder, class);
                self.moved = self.moved.saturating_add(data.len() as u64);
                let request = Request { kind, offset, len, buffers: data, tag };
                let request = match self.capped.admit(context, &self.shared, request) {
                    Some(request) => request,
                    None => {
                        self.times.held(context, &self.stats.recorder, Some(&mut stamps));
                        let entry = InFlight { chain, status, class, offset, bytes: len, stamps };
                        return self.in_flight.insert(entry.chain.head(), entry);
                    }
                };
                let entry = InFlight { chain, status, class, offset, bytes: len, stamps };
                // What ends at once never enters the table.
                let held = match self.channel.submit(context, request) {
                    Submitted::Done(completion) => {
                        self.times.inline(&entry);
                        return self.complete(entry, completion);
                    }
                    Submitted::Pending => None,
                    Submitted::Full(request) => Some(request),
                };
                self.held = held;
                self.in_flight.insert(entry.chain.head(), entry);
            }
            Parsed::Id { data, status } => {
                let mut window = data;
                window.truncate(ID_BYTES);
                let written = window.write(&self.shared.serial);
                status.set(S_OK);
                self.times.passed_over();
                self.stats.request(Class::GetId, written as u64);
                self.queue.push(chain, written as u32 + 1);
            }
            Parsed::Refused { code, status } => {
                status.set(code);
                self.times.passed_over();
                self.stats.error();
                self.queue.push(chain, 1);
            }
            Parsed::Mute => {
                self.times.passed_over();
                self.stats.error();
                self.queue.push(chain, 0);
            }
        }
    }

    /// Submits the request that the caps hold back, if its turn has come; true when it was.
    fn release(&mut self, context: &mut Context<'_>) -> bool {
        // Its turn is taken, so one that goes early at a stop is paid for by those after it.
        let Some(request) = self.capped.release(context, &self.shared, self.stopping) else {
            return false;
        };
        let stats = (&self.stats.stages, &self.stats.recorder);
        let popped = self.in_flight.get_mut(request.tag);
        let popped = popped.map(|entry| (&mut entry.stamps, entry.class));
        self.times.released(context, stats, popped);
        self.submit_again(context, request);
        true
    }

    /// Submits a request that was held back.
    fn submit_again(&mut self, context: &mut Context<'_>, request: Request) {
        match self.channel.submit(context, request) {
            Submitted::Done(completion) => {
                if let Some(entry) = self.in_flight.take(completion.tag) {
                    self.times.inline(&entry);
                    self.complete(entry, completion);
                }
            }
            Submitted::Pending => {}
            Submitted::Full(request) => self.held = Some(request),
        }
    }

    /// Collects what the disk has finished; true when there was something.
    fn reap(&mut self, context: &mut Context<'_>) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(context, &mut done);
        let any = !done.is_empty();
        for completion in done.drain(..) {
            let Some(entry) = self.in_flight.take(completion.tag) else { continue };
            let stats = (&self.stats.stages, &self.stats.recorder);
            self.times.reaped(context, stats, &entry, completion.outcome.is_err());
            self.complete(entry, completion);
        }
        self.done = done;
        any
    }

    /// Writes the status and gives the chain back.
    fn complete(&mut self, entry: InFlight, completion: Completion) {
        let InFlight { mut chain, status, class, bytes, .. } = entry;
        if self.zombie {
            // Its memory may be another request's by now; the ring has failed and takes nothing.
            return self.queue.push(chain, 0);
        }
        if self.giving_up && self.recorded && completion.outcome == Err(IoError::Full) {
            return self.left.push(chain);
        }
        let code = status_of(completion.outcome);
        status.set(code);
        let written = match (class, code) {
            (Class::Read, S_OK) => bytes as u32 + 1,
            _ => 1,
        };
        match completion.outcome {
            Ok(()) => self.stats.request(class, bytes),
            Err(error) => self.failed(class, error),
        }
        // The list goes back with the chain, so that the next one needs no allocation.
        keep(&mut chain, completion.buffers, class);
        self.queue.push(chain, written);
    }

    #[cold]
    fn failed(&self, class: Class, error: IoError) {
        self.stats.error();
        tracing::debug!(disk = self.shared.id, queue = self.index, ?class, %error, "request failed");
    }

    /// Shows the guest what has ended, and calls it if it wants to be called.
    fn publish(&mut self, context: &mut Context<'_>) {
        let stats = (&self.stats.stages, &self.stats.recorder);
        self.times.published(context, stats, &self.in_flight, self.queue.in_flight());
        if self.queue.publish() {
            self.signal(context);
        }
    }

    fn signal(&mut self, context: &mut Context<'_>) {
        if let Some(call) = &self.call {
            // One that does not fit finds earlier calls that the guest has not taken.
            context.ring(call);
            self.stats.call();
        }
    }

    /// Requests of a former life are still to be taken. A ring that has failed yields none.
    fn owes(&self) -> bool {
        !self.queue.failed() && self.queue.recovering()
    }

    #[cold]
    fn broken(&self, context: &mut Context<'_>, error: &RingError) {
        let (disk, queue) = (&self.shared.id, self.index);
        tracing::error!(
            disk,
            queue,
            error = %chain_of(error),
            "the guest's driver broke the ring; it must reset the device"
        );
        if let Some(err) = &self.err {
            context.ring(err);
        }
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

/// An error with its causes.
fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn keep(chain: &mut Chain, buffers: Buffers, class: Class) {
    match class {
        Class::Read => chain.writable = buffers,
        Class::Write => chain.readable = buffers,
        _ => {}
    }
}

impl Poller for BlkQueue {
    fn poll(&mut self, context: &mut Context<'_>) -> Turn {
        self.times.turn_begins();
        let mut worked = self.reap(context);
        worked |= self.take(context);
        // Also when nothing was found: what was looked at may have been a hole.
        self.check_memory();
        if worked || self.stopping {
            self.publish(context);
        }
        let unfinished = usize::from(self.queue.in_flight()).saturating_sub(self.left.len());
        if self.stopping && unfinished == 0 && !self.owes() {
            if !self.left.is_empty() {
                // A failed ring takes nothing more, and keeps what is in flight on record.
                self.queue.fail();
                self.left.drain(..).for_each(|chain| self.queue.push(chain, 0));
            }
            if let Some(answer) = self.stopped.take() {
                // The last call must be there before the front-end hears that the ring stands still,
                // and a successor on another reactor writes the same records as soon as it is told.
                context.flush();
                self.end_records();
                let _ = answer.send(self.queue.next_avail());
            }
            return Turn::Gone;
        }
        if worked { Turn::Busy } else { Turn::Idle }
    }

    fn wake(&mut self) {
        self.queue.suppress();
    }

    fn arm(&mut self) -> bool {
        // With a request held back, or while stopping, only a completion or a timer brings us on.
        self.held.is_none() && self.capped.is_empty() && !self.stopping && self.queue.arm()
    }

    fn kicked(&mut self) {
        self.stats.kick();
    }

    fn spins(&self) -> bool {
        self.spins && !self.queue.failed()
    }

    fn label(&self) -> Label {
        self.shared.label
    }
}

impl BlkQueue {
    /// Writes no more records, once.
    fn end_records(&mut self) {
        if !std::mem::replace(&mut self.silent, true) {
            self.stats.recorder.ends();
        }
    }
}

impl Drop for BlkQueue {
    /// What is in flight stays on record in the in-flight region, for a successor.
    fn drop(&mut self) {
        self.end_records();
        for entry in self.in_flight.drain() {
            entry.chain.abandon();
        }
    }
}
