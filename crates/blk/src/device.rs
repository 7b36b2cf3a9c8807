//! The virtio-blk device: its features, configuration space, counters and queues.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use disk::Disk;
use error_causes::error_chain;
use memory::Table;
use reactor::{Context, Handle, OwnerId, PollPolicy, PollState, PollerId, Snapshot, Stopped};
use virtq::{BrokenRing, Inflight, QueueStart, RingError};

use crate::config;
use crate::drain::{DrainingQueue, StopMode};
use crate::latency::{Oldest, Op, SlowRequest, Stage};
use crate::queue::{BlkQueue, TrialStart};
use crate::spec::{ID_BYTES, feature};
use crate::stats::{DeviceStats, QueueState, QueueStats};
use crate::throttle::{Caps, Throttle, TokenBalance};

/// Options of a [`BlkDevice`].
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Name in logs.
    pub id: String,
    /// Number of queues offered; at least 1.
    pub queues: u16,
    /// Answer to GET_ID, truncated to 20 bytes.
    pub serial: String,
    /// Polling policy of idle queues.
    pub poll: PollPolicy,
    /// Whether the queues record latencies and slow requests.
    pub record: bool,
}

/// Next device label of this process; 0 belongs to no device.
static NEXT_LABEL: AtomicU32 = AtomicU32::new(1);

/// Callback for a session that cannot continue.
///
/// The reactor's thread calls it at most once per queue, with the reason.
pub type FaultHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// Reason why a queue cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The ring is not usable.
    #[error("queue {index} cannot be served")]
    Ring {
        /// Index of the queue.
        index: u16,
        /// Reason why the ring is not usable.
        #[source]
        source: RingError,
    },
    /// The device has fewer queues.
    #[error("there is no queue {index}, the disk has {queues}")]
    NoSuchQueue {
        /// Index that the caller requested.
        index: u16,
        /// Number of queues of the device.
        queues: u16,
    },
    /// The reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// State that the device and its queues share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) id: String,
    pub(crate) serial: [u8; ID_BYTES],
    pub(crate) record: bool,
    pub(crate) label: OwnerId,
    /// Incremented when the disk is resized; queues then read the geometry again.
    pub(crate) epoch: AtomicU64,
    pub(crate) throttle: Throttle,
}

/// A virtio-blk device over one disk.
#[derive(Debug)]
pub struct BlkDevice {
    shared: Arc<Shared>,
    stats: Box<[Arc<QueueStats>]>,
    made: SystemTime,
}

impl BlkDevice {
    /// Creates a device that presents `disk`.
    pub fn new(disk: Arc<dyn Disk>, options: &DeviceOptions) -> Self {
        let mut serial = [0; ID_BYTES];
        for (place, byte) in serial.iter_mut().zip(options.serial.bytes()) {
            *place = byte;
        }
        let id = options.id.clone();
        let shared = Arc::new(Shared {
            disk,
            id,
            serial,
            record: options.record,
            label: NEXT_LABEL.fetch_add(1, Ordering::Relaxed),
            epoch: AtomicU64::new(0),
            throttle: Throttle::default(),
        });
        let stats = (0..options.queues.max(1)).map(|_| Arc::default()).collect();
        let device = Self { shared, stats, made: SystemTime::now() };
        device.set_poll(options.poll);
        device
    }

    /// Returns the creation time, at which all counters were 0.
    pub fn made(&self) -> SystemTime {
        self.made
    }

    /// Returns the number of queues offered.
    pub fn queues(&self) -> u16 {
        self.stats.len() as u16
    }

    /// Returns the feature bits offered.
    pub fn features(&self) -> u64 {
        use feature::*;
        let geometry = self.shared.disk.geometry();
        let changes = if geometry.read_only { RO } else { DISCARD | WRITE_ZEROES };
        let queues = if self.queues() > 1 { MQ } else { 0 };
        let ring = INDIRECT_DESC | EVENT_IDX | VERSION_1;
        SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | changes | queues | ring
    }

    /// Copies the configuration space from byte `offset` on. Bytes of `out` beyond its end stay
    /// unchanged.
    pub fn read_config(&self, offset: u32, out: &mut [u8]) {
        let space = config::config_space(&self.shared.disk.geometry(), self.queues());
        let from = space.get(offset as usize..).unwrap_or_default();
        for (place, byte) in out.iter_mut().zip(from) {
            *place = *byte;
        }
    }

    /// Notifies the queues that the disk has a new size. Later requests are checked against it.
    pub fn resized(&self) {
        self.shared.epoch.fetch_add(1, Ordering::Release);
    }

    /// Sets the caps of the disk. A queue with a waiting request applies them at once only if
    /// [`RunningQueue::recheck_throttle`] wakes it.
    pub fn set_caps(&self, caps: Caps) {
        self.shared.throttle.set(caps, self.now());
    }

    /// Sets the polling policy of idle queues. A sleeping queue applies it when it is woken, for
    /// example by [`RunningQueue::recheck_throttle`].
    pub fn set_poll(&self, policy: PollPolicy) {
        self.stats.iter().for_each(|queue| queue.poll_control.set(policy));
    }

    /// Returns the sum of the queues' polling states since the device was created.
    pub fn poll_state(&self) -> PollState {
        let mut sum = PollState::default();
        self.stats.iter().for_each(|queue| sum.add(&queue.poll_control.state()));
        sum
    }

    /// Returns the unused tokens under the caps; debt is negative. Exact while no queue runs.
    pub fn token_balance(&self) -> TokenBalance {
        self.shared.throttle.token_balance(self.now())
    }

    /// Sets the unused tokens or the debt under the caps. Call it before the first queue starts.
    pub fn set_token_balance(&self, saved: TokenBalance) {
        self.shared.throttle.refill(saved, self.now());
    }

    /// Returns the name in logs.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Returns the time on the clock of the caps, in nanoseconds.
    fn now(&self) -> u64 {
        reactor::clock_ns()
    }

    /// Returns the caps in force.
    pub fn caps(&self) -> Caps {
        self.shared.throttle.caps()
    }

    /// Returns sums over all queues since the device was created.
    pub fn stats(&self) -> DeviceStats {
        DeviceStats::sum(self.stats.iter().map(|queue| &**queue))
    }

    /// Returns the number that identifies this device among the owners of a reactor's queues.
    pub fn label(&self) -> OwnerId {
        self.shared.label
    }

    /// Returns the durations of `stage` for requests of kind `op`, summed over all queues since
    /// the device was created. `None` if there were none.
    pub fn durations(&self, stage: Stage, op: Op) -> Option<Snapshot> {
        let mut sum = None;
        for queue in &self.stats {
            queue.stages.add_to(stage, op, &mut sum);
        }
        sum
    }

    /// Returns the slow requests in the flight recorders of all queues, in no order.
    pub fn slow(&self) -> Vec<SlowRequest> {
        self.stats.iter().flat_map(|queue| queue.recorder.records()).collect()
    }

    /// Returns the oldest unfinished request, even while the storage hangs.
    pub fn oldest(&self) -> Option<Oldest> {
        let all = self.stats.iter().filter_map(|queue| queue.recorder.oldest());
        all.min_by_key(|oldest| oldest.known_ns)
    }

    /// Returns when the disk received the oldest request that it still works on, over all queues.
    ///
    /// The time is nanoseconds on [`clock_ns`](crate::clock_ns). An older request of another queue
    /// that waits in its ring or under its cap does not hide this one.
    pub fn oldest_in_disk_ns(&self) -> Option<u64> {
        let all = self.stats.iter().filter_map(|queue| queue.recorder.oldest());
        all.filter(|oldest| oldest.stage == Stage::Device).map(|oldest| oldest.entered_ns).min()
    }

    /// Returns the total duration of a queue's turns since the device was created, in nanoseconds;
    /// 0 if the device does not record.
    pub fn busy_ns(&self, index: u16) -> u64 {
        self.stats.get(usize::from(index)).map_or(0, |queue| queue.busy_ns())
    }

    /// Returns the current state of each queue.
    pub fn queue_states(&self) -> Vec<QueueState> {
        self.stats.iter().map(|queue| QueueState::of(queue)).collect()
    }

    /// Returns the index and the state of each broken ring.
    pub fn broken_rings(&self) -> Vec<(u16, BrokenRing)> {
        let all = (0..).zip(&self.stats);
        all.filter_map(|(index, queue)| Some((index, queue.broken_ring.get()?))).collect()
    }

    /// Sets the state of a broken ring that another process has served.
    pub fn restore_broken_ring(&self, index: u16, broken_ring: BrokenRing) {
        if let Some(queue) = self.stats.get(usize::from(index)) {
            queue.broken_ring.restore(broken_ring);
        }
    }

    /// Records that the front-end has stopped ring `index`, so that it is not broken any more.
    pub fn clear_broken_ring(&self, index: u16) {
        if let Some(queue) = self.stats.get(usize::from(index)) {
            queue.broken_ring.clear();
        }
    }

    /// Starts to serve a ring on `reactor`. The disk must be activated. A ring that cannot start is
    /// [broken](Self::broken_rings). With `trial`, a queue with requests of a process that died pops
    /// nothing before [`TrialHandle::begin`].
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn start_queue(
        &self,
        reactor: &Handle,
        start: QueueStart,
        fault: FaultHandler,
        trial: Option<TrialStart>,
    ) -> Result<RunningQueue, QueueError> {
        let index = start.index;
        let make = self.maker(start, fault, trial)?;
        self.clear_broken_ring(index);
        let id = reactor.call(make)?.map_err(|source| {
            if let Some(queue) = self.stats.get(usize::from(index)) {
                queue.broken_ring.record(&error_chain(&source));
            }
            QueueError::Ring { index, source }
        })?;
        Ok(RunningQueue::running(reactor.clone(), id, index))
    }

    /// Starts to serve a ring on the caller's reactor, until that reactor ends.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn start_queue_here(
        &self,
        context: &mut Context<'_>,
        start: QueueStart,
        fault: FaultHandler,
    ) -> Result<(), QueueError> {
        let index = start.index;
        let made = self.maker(start, fault, None)?(context);
        made.map(|_| ()).map_err(|source| QueueError::Ring { index, source })
    }

    /// Returns the function that creates the poller of a ring on its reactor.
    fn maker(
        &self,
        mut start: QueueStart,
        fault: FaultHandler,
        trial: Option<TrialStart>,
    ) -> Result<impl FnOnce(&mut Context<'_>) -> Result<PollerId, RingError> + use<>, QueueError>
    {
        let (index, queues) = (start.index, self.queues());
        let stats = self.stats.get(usize::from(index));
        let stats = stats.ok_or(QueueError::NoSuchQueue { index, queues })?.clone();
        let shared = self.shared.clone();
        Ok(move |context: &mut Context<'_>| {
            let kick = start.kick.take();
            let kickless = kick.is_none();
            let make = |context: &mut Context<'_>| {
                BlkQueue::new(shared, stats, start, kickless, fault, trial, context)
            };
            context.add_poller(kick, make)
        })
    }
}

/// A ring that a reactor serves. Dropping it stops the ring without waiting.
#[derive(Debug)]
pub struct RunningQueue {
    reactor: Handle,
    id: PollerId,
    index: u16,
    running: bool,
}

impl RunningQueue {
    pub(crate) fn running(reactor: Handle, id: PollerId, index: u16) -> Self {
        Self { reactor, id, index, running: true }
    }

    /// Returns the index of the queue in its device.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Returns a handle of the trial that the queue was started with. It stays valid when the queue
    /// has ended.
    pub fn trial_handle(&self) -> TrialHandle {
        TrialHandle { reactor: self.reactor.clone(), id: self.id }
    }

    /// Stops taking requests and waits for those in flight. Returns the available index at which a
    /// successor continues.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended; the position is lost with it.
    pub fn stop(self) -> Result<u16, Stopped> {
        self.begin_stop()?.wait()
    }

    /// Stops taking requests without waiting for those in flight.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended; the position is lost with it.
    pub fn begin_stop(mut self) -> Result<DrainingQueue, Stopped> {
        self.running = false;
        DrainingQueue::begin(self.reactor.clone(), self.id, self.index, StopMode::Stop)
    }

    /// Stops taking requests so that a successor can continue with the ring. Waiting requests do
    /// not fail. Finish with [`DrainingQueue::wait_or_resume`].
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended; the position is lost with it.
    pub fn begin_quiesce(mut self) -> Result<DrainingQueue, Stopped> {
        self.running = false;
        DrainingQueue::begin(self.reactor.clone(), self.id, self.index, StopMode::Quiesce)
    }

    /// Stops taking requests so that another process can continue with the ring. Requests that wait
    /// for space on the storage stay recorded: in the front-end's in-flight region, or else in
    /// `spare`, which the caller hands over. Finish with [`DrainingQueue::wait_or_resume`].
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended; the position is lost with it.
    pub fn begin_handover(mut self, spare: Option<Inflight>) -> Result<DrainingQueue, Stopped> {
        self.running = false;
        let mode = StopMode::HandOver(spare);
        DrainingQueue::begin(self.reactor.clone(), self.id, self.index, mode)
    }

    /// Makes the queue check its waiting request against changed caps. Does not wait.
    pub fn recheck_throttle(&self) {
        let id = self.id;
        // A call on a poller makes it runnable. A queue that has ended has no waiting request.
        let _ = self.reactor.send(move |context| {
            context.with_poller(id, |_: &mut BlkQueue, _| ());
        });
    }

    /// Waits until the queue's current turn has ended. The queue publishes finished requests to
    /// its guest before [`BlkDevice::oldest_in_disk_ns`] reflects them.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended.
    pub fn wait_turn(&self) -> Result<(), Stopped> {
        self.reactor.call(|_| ())
    }

    /// Maps the ring through a new memory table. Requests in flight keep the old table.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn set_memory(&self, table: Arc<Table>) -> Result<(), QueueError> {
        let (id, index) = (self.id, self.index);
        let done = self.reactor.call(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, _| queue.set_memory(table))
        })?;
        match done {
            None => Err(QueueError::Stopped(Stopped)),
            Some(outcome) => outcome.map_err(|source| QueueError::Ring { index, source }),
        }
    }

    /// Replaces the call descriptor and calls once, because a call may have been lost meanwhile.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor or the queue has ended.
    pub fn set_call(&self, call: Option<Arc<OwnedFd>>) -> Result<(), Stopped> {
        let id = self.id;
        let done = self.reactor.call(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, context| queue.set_call(call, context))
        })?;
        done.ok_or(Stopped)
    }
}

/// Handle of a queue's trial ([`BlkDevice::start_queue`]).
#[derive(Debug)]
pub struct TrialHandle {
    reactor: Handle,
    id: PollerId,
}

impl TrialHandle {
    /// Lets the queue execute the requests of its trial, one at a time. Does not wait.
    pub fn begin(&self) {
        self.call(|queue| queue.begin_trial());
    }

    /// Ends the trial early: the queue submits the remaining requests at once. Does not wait.
    pub fn end(&self) {
        self.call(|queue| queue.end_trial());
    }

    fn call(&self, change: impl FnOnce(&mut BlkQueue) + Send + 'static) {
        let id = self.id;
        // A queue that has ended has no trial.
        let _ = self.reactor.send(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, _| change(queue));
        });
    }
}

impl Drop for RunningQueue {
    fn drop(&mut self) {
        if self.running {
            let id = self.id;
            // A reactor that has ended has dropped the queue already.
            let _ = self.reactor.send(move |context| {
                context.with_poller(id, |queue: &mut BlkQueue, context| queue.stop(context, None));
            });
        }
    }
}
