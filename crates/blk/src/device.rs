//! One disk as a guest sees it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use disk::Disk;
use memory::Table;
use reactor::{Context, Handle, OwnerId, PollPolicy, PollState, PollerId, Snapshot, Stopped};
use virtq::{QueueStart, RingError};

use crate::config;
use crate::drain::DrainingQueue;
use crate::latency::{Oldest, Op, SlowRequest, Stage};
use crate::queue::BlkQueue;
use crate::spec::{ID_BYTES, feature};
use crate::stats::{DeviceStats, QueueState, QueueStats};
use crate::throttle::{Caps, Throttle, TokenBalance};

/// How a disk is presented.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Name in logs.
    pub id: String,
    /// Queues offered, from 1 on.
    pub queues: u16,
    /// Answer to GET_ID, cut at 20 bytes.
    pub serial: String,
    /// How queues wait when they have nothing to do.
    pub poll: PollPolicy,
    /// Measure where the time of requests goes.
    pub record: bool,
}

/// Labels of the devices of this process; 0 is nobody's.
static NEXT_LABEL: AtomicU32 = AtomicU32::new(1);

/// Called on the reactor's thread, at most once per queue, when a session cannot go on.
pub type FaultHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// Why a queue cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The ring is not usable.
    #[error("queue {index} cannot be served")]
    Ring {
        /// Which queue.
        index: u16,
        /// Why.
        #[source]
        source: RingError,
    },
    /// The device has fewer queues.
    #[error("there is no queue {index}, the disk has {queues}")]
    NoSuchQueue {
        /// What was asked for.
        index: u16,
        /// How many there are.
        queues: u16,
    },
    /// The reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// What the device and its queues share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) id: String,
    pub(crate) serial: [u8; ID_BYTES],
    pub(crate) record: bool,
    pub(crate) label: OwnerId,
    /// Changes when the disk was resized: queues then ask for the geometry again.
    pub(crate) epoch: AtomicU64,
    pub(crate) throttle: Throttle,
}

/// One disk as a guest sees it.
#[derive(Debug)]
pub struct BlkDevice {
    shared: Arc<Shared>,
    stats: Box<[Arc<QueueStats>]>,
    made: SystemTime,
}

impl BlkDevice {
    /// Presents `disk`.
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

    /// When it was made: all its counts were 0 then.
    pub fn made(&self) -> SystemTime {
        self.made
    }

    /// Queues offered.
    pub fn queues(&self) -> u16 {
        self.stats.len() as u16
    }

    /// Feature bits offered.
    pub fn features(&self) -> u64 {
        use feature::*;
        let geometry = self.shared.disk.geometry();
        let changes = if geometry.read_only { RO } else { DISCARD | WRITE_ZEROES };
        let queues = if self.queues() > 1 { MQ } else { 0 };
        let ring = INDIRECT_DESC | EVENT_IDX | VERSION_1;
        SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | changes | queues | ring
    }

    /// Copies configuration space from byte `offset` on; beyond its end `out` is left alone.
    pub fn read_config(&self, offset: u32, out: &mut [u8]) {
        let space = config::config_space(&self.shared.disk.geometry(), self.queues());
        let from = space.get(offset as usize..).unwrap_or_default();
        for (place, byte) in out.iter_mut().zip(from) {
            *place = *byte;
        }
    }

    /// The disk has another size: requests are checked against it from now on.
    pub fn resized(&self) {
        self.shared.epoch.fetch_add(1, Ordering::Release);
    }

    /// Caps what the guest may do from now on. Queues in which something waits must be woken
    /// ([`RunningQueue::recheck_throttle`]) to notice it at once.
    pub fn set_caps(&self, caps: Caps) {
        self.shared.throttle.set(caps, self.now());
    }

    /// Changes how queues wait when they have nothing to do. One that sleeps learns of it when it
    /// is woken ([`RunningQueue::recheck_throttle`] does that).
    pub fn set_poll(&self, policy: PollPolicy) {
        self.stats.iter().for_each(|queue| queue.poll_control.set(policy));
    }

    /// How its queues have waited since it was made, together.
    pub fn poll_state(&self) -> PollState {
        let mut sum = PollState::default();
        self.stats.iter().for_each(|queue| sum.add(&queue.poll_control.state()));
        sum
    }

    /// What is saved up under the caps, or owed. Exact while no queue runs.
    pub fn saved(&self) -> TokenBalance {
        self.shared.throttle.saved(self.now())
    }

    /// So much is saved up under the caps, or owed, when the first queue starts.
    pub fn set_saved(&self, saved: TokenBalance) {
        self.shared.throttle.refill(saved, self.now());
    }

    /// On the clock of the caps.
    fn now(&self) -> u64 {
        reactor::clock_ns()
    }

    /// The caps in force.
    pub fn caps(&self) -> Caps {
        self.shared.throttle.caps()
    }

    /// Sums over all queues since the device was made.
    pub fn stats(&self) -> DeviceStats {
        DeviceStats::sum(self.stats.iter().map(|queue| &**queue))
    }

    /// What identifies this device to those who share a reactor with it.
    pub fn label(&self) -> OwnerId {
        self.shared.label
    }

    /// Durations of `stage` for requests of kind `op`, over all queues since the device was made.
    /// `None` when there were none.
    pub fn durations(&self, stage: Stage, op: Op) -> Option<Snapshot> {
        let mut sum = None;
        for queue in &self.stats {
            queue.stages.add_to(stage, op, &mut sum);
        }
        sum
    }

    /// Slow requests that the flight recorders of the queues keep, in no order.
    pub fn slow(&self) -> Vec<SlowRequest> {
        self.stats.iter().flat_map(|queue| queue.recorder.records()).collect()
    }

    /// The oldest request that is under way, also while it hangs.
    pub fn oldest(&self) -> Option<Oldest> {
        let all = self.stats.iter().filter_map(|queue| queue.recorder.oldest());
        all.min_by_key(|oldest| oldest.known_ns)
    }

    /// Since when, by the clock of [`clock_ns`](crate::clock_ns), the oldest request of any queue
    /// that is with the disk has been there. One of another queue that waits elsewhere for longer
    /// does not hide it.
    pub fn oldest_in_disk_ns(&self) -> Option<u64> {
        let all = self.stats.iter().filter_map(|queue| queue.recorder.oldest());
        all.filter(|oldest| oldest.stage == Stage::Device).map(|oldest| oldest.entered_ns).min()
    }

    /// Nanoseconds for which the turns of a queue have lasted since the device was made; 0 where
    /// nothing is recorded.
    pub fn busy_ns(&self, index: u16) -> u64 {
        self.stats.get(usize::from(index)).map_or(0, |queue| queue.busy_ns())
    }

    /// Each queue as it stands now.
    pub fn queue_states(&self) -> Vec<QueueState> {
        self.stats.iter().map(|queue| QueueState::of(queue)).collect()
    }

    /// Serves a ring on `reactor`. The disk must be activated.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn start_queue(
        &self,
        reactor: &Handle,
        start: QueueStart,
        fault: FaultHandler,
    ) -> Result<RunningQueue, QueueError> {
        let index = start.index;
        let make = self.maker(start, fault)?;
        let id = reactor.call(make)?.map_err(|source| QueueError::Ring { index, source })?;
        Ok(RunningQueue::running(reactor.clone(), id, index))
    }

    /// Serves a ring on the reactor of the caller, as long as that lives.
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
        let made = self.maker(start, fault)?(context);
        made.map(|_| ()).map_err(|source| QueueError::Ring { index, source })
    }

    /// What makes the poller of a ring.
    fn maker(
        &self,
        mut start: QueueStart,
        fault: FaultHandler,
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
                BlkQueue::new(shared, stats, start, kickless, fault, context)
            };
            context.add_poller(kick, make)
        })
    }
}

/// A ring being served. Dropping it stops it without waiting.
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

    /// Which queue of the device it is.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Takes no more requests, waits for those in flight, and returns where a successor goes on.
    ///
    /// # Errors
    /// [`Stopped`]: the reactor has ended, and the position with it.
    pub fn stop(self) -> Result<u16, Stopped> {
        self.begin_stop()?.wait()
    }

    /// Takes no more requests; does not wait for those in flight.
    ///
    /// # Errors
    /// [`Stopped`]: the reactor has ended, and the position with it.
    pub fn begin_stop(mut self) -> Result<DrainingQueue, Stopped> {
        self.running = false;
        DrainingQueue::begin(self.reactor.clone(), self.id, self.index, false)
    }

    /// Takes no more requests, so that somebody else can go on with the ring: nothing that waits
    /// is failed for it. Ends with [`DrainingQueue::wait_or_resume`].
    ///
    /// # Errors
    /// [`Stopped`]: the reactor has ended, and the position with it.
    pub fn begin_quiesce(mut self) -> Result<DrainingQueue, Stopped> {
        self.running = false;
        DrainingQueue::begin(self.reactor.clone(), self.id, self.index, true)
    }

    /// Has the queue look at what it waits for: the caps have changed. Does not wait.
    pub fn recheck_throttle(&self) {
        let id = self.id;
        // A call on a poller makes it hot; one that has ended waits for nothing.
        let _ = self.reactor.send(move |context| {
            context.with_poller(id, |_: &mut BlkQueue, _| ());
        });
    }

    /// Waits until the turn that the queue is in has ended: it shows its guest what has ended
    /// before [`BlkDevice::oldest_in_disk_ns`] knows.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait_turn(&self) -> Result<(), Stopped> {
        self.reactor.call(|_| ())
    }

    /// Finds the ring in a new memory table; requests in flight keep the old one.
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

    /// Replaces the call descriptor and calls once, since a call may have been lost in between.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_call(&self, call: Option<Arc<OwnedFd>>) -> Result<(), Stopped> {
        let id = self.id;
        let done = self.reactor.call(move |context| {
            context.with_poller(id, |queue: &mut BlkQueue, context| queue.set_call(call, context))
        })?;
        done.ok_or(Stopped)
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
