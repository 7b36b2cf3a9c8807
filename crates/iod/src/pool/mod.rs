//! The reactors of a process, and the placement of queues on them.
//!
//! The pool also carries what all devices of the process share: the budget of guest memory, the
//! watch over full storage, and the trials of suspected requests.
//!
//! A queue is placed on the reactor with the lowest recent load. It is moved when queues were
//! placed or removed and the load of the reactors is uneven. The load of a queue is read from its
//! counter when a queue is placed or moved, or when statistics are reported. Nothing is sampled
//! meanwhile.
//!
//! Switches use only the first reactors ([`Pool::of_networks`]), because frames between two ports
//! on different reactors are copied once more.
//!
//! ```text
//!   place, remove --> note --> balancer: waits a moment, reads, decides ([`load`])
//!                                 `--> QueueMover::move_queue --> drained here, started there
//! ```

mod balance;
mod load;
mod size;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use memory::MemoryBudget;
use reactor::{Handle, OwnerId, Reactor};

use self::load::ReactorLoads;
pub use self::size::PoolSize;
use crate::full_watch::FullWatch;
use crate::trials::Trials;

/// Reactors and the queues on them. Dropping the pool ends its reactors.
#[derive(Debug)]
pub struct Pool {
    reactors: Vec<Reactor>,
    size: PoolSize,
    shared: Arc<Shared>,
    /// Trials of the disks' requests, if the process must suspect some.
    trials: Option<Trials>,
    full_watch: Arc<FullWatch>,
    memory_budget: Arc<MemoryBudget>,
}

/// State that the pool shares with the balancer and with every lease.
#[derive(Debug)]
struct Shared {
    handles: Vec<Handle>,
    placements: Mutex<Placements>,
    noted: Condvar,
}

#[derive(Debug, Default)]
struct Placements {
    loads: ReactorLoads<PlacedQueue>,
    /// True if a queue was placed or removed since the balancer's last check.
    note: bool,
    /// Number of moved queues.
    moves: u64,
    /// True if the pool is gone.
    over: bool,
}

/// Owner of a queue that can move it from one reactor to another.
pub(crate) trait QueueMover: Send + Sync {
    /// Moves the queue of lease `from` to the lease `to`, if the queue exists and drains soon.
    /// Otherwise nothing changes. Returns whether it has moved.
    fn move_queue(&self, from: u64, to: ReactorLease) -> bool;
}

/// Queue placed on a reactor.
#[derive(Clone)]
pub(crate) struct PlacedQueue {
    /// Owner of the queue. Queues of the same owner are spread.
    pub(crate) label: OwnerId,
    /// Function that returns the busy time in nanoseconds. `None` if it is not counted.
    pub(crate) busy_ns: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    /// Owner that can move it.
    pub(crate) queue_mover: Option<Weak<dyn QueueMover>>,
}

impl PlacedQueue {
    /// Creates a queue without owner that cannot be moved and whose load is not counted.
    fn of_nobody() -> Self {
        Self { label: 0, busy_ns: None, queue_mover: None }
    }
}

impl std::fmt::Debug for PlacedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlacedQueue").field("label", &self.label).finish_non_exhaustive()
    }
}

impl load::LoadSource for PlacedQueue {
    fn busy_ns(&self) -> Option<u64> {
        self.busy_ns.as_ref().map(|busy_ns| busy_ns())
    }

    fn label(&self) -> OwnerId {
        self.label
    }

    fn can_move(&self) -> bool {
        self.queue_mover.is_some()
    }
}

/// Reservation on a reactor. Dropping it releases the reservation.
#[derive(Debug)]
pub struct ReactorLease {
    handle: Handle,
    id: u64,
    shared: Arc<Shared>,
}

fn lock(placements: &Mutex<Placements>) -> MutexGuard<'_, Placements> {
    // Each change is one complete step, so a panic elsewhere cannot leave the state inconsistent.
    placements.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts the number of reactors in `size`.
    ///
    /// # Errors
    /// The kernel refuses threads or rings.
    pub fn start(size: PoolSize) -> io::Result<Self> {
        let reactors = (0..size.reactors()).map(|at| Reactor::spawn(format!("reactor-{at}")));
        let reactors = reactors.collect::<Result<Vec<_>, _>>()?;
        let handles: Vec<_> = reactors.iter().map(|one| one.handle().clone()).collect();
        let loads = ReactorLoads::new(handles.len());
        let placements = Mutex::new(Placements { loads, ..Placements::default() });
        let shared = Arc::new(Shared { handles, placements, noted: Condvar::new() });
        if reactors.len() > 1 {
            balance::start(&shared)?;
        }
        Ok(Self {
            reactors,
            size,
            shared,
            trials: None,
            full_watch: FullWatch::start()?,
            memory_budget: Arc::default(),
        })
    }

    /// Returns the budget for the memory of front-ends.
    pub(crate) fn memory_budget(&self) -> &Arc<MemoryBudget> {
        &self.memory_budget
    }

    /// Sets the trials of the rings of disks.
    pub(crate) fn with_trials(mut self, trials: Option<Trials>) -> Self {
        self.trials = trials;
        self
    }

    /// Returns the trials of the rings of disks, if the process must suspect requests.
    pub(crate) fn trials(&self) -> Option<&Trials> {
        self.trials.as_ref()
    }

    /// Returns the watch over full storage, which all disks of the process share.
    pub(crate) fn full_watch(&self) -> &FullWatch {
        &self.full_watch
    }

    /// Returns the number of reactors and its reason.
    pub fn size(&self) -> &PoolSize {
        &self.size
    }

    /// Reserves a place for a queue that cannot be moved and whose load is not counted.
    pub fn place(&self) -> ReactorLease {
        self.place_among(self.reactors.len(), PlacedQueue::of_nobody())
    }

    /// Reserves a place like [`Self::place`], among the reactors that have switches.
    pub fn place_in_networks(&self) -> ReactorLease {
        self.place_among(self.of_networks().len(), PlacedQueue::of_nobody())
    }

    /// Reserves a place on the least loaded reactor.
    pub(crate) fn place_queue(&self, placed_queue: PlacedQueue) -> ReactorLease {
        self.place_among(self.reactors.len(), placed_queue)
    }

    fn place_among(&self, first: usize, placed_queue: PlacedQueue) -> ReactorLease {
        let mut placements = lock(&self.shared.placements);
        placements.loads.read(reactor::clock_ns());
        let at = placements.loads.least(first, placed_queue.label);
        let id = placements.loads.add(at, placed_queue, reactor::clock_ns());
        drop(placements);
        self.shared.note();
        self.shared.at(at, id)
    }

    /// Returns each reactor with the number of its leases.
    pub fn reactors(&self) -> Vec<(&Handle, usize)> {
        let counts = lock(&self.shared.placements).loads.counts();
        self.reactors.iter().map(Reactor::handle).zip(counts).collect()
    }

    /// Returns the reactors that have switches, which are the first ones: see
    /// [`PoolSize::beside_guests`].
    pub fn of_networks(&self) -> Vec<&Handle> {
        let most = self.size.beside_guests().reactors();
        self.reactors.iter().map(Reactor::handle).take(most).collect()
    }

    /// Returns the number of queues that were moved between reactors.
    pub fn moves(&self) -> u64 {
        lock(&self.shared.placements).moves
    }

    /// Moves all queues of a reactor to the next one. Returns the number of moved queues.
    #[cfg(test)]
    pub(crate) fn shift(&self, from: usize) -> usize {
        let to = (from + 1) % self.shared.handles.len();
        let ids = lock(&self.shared.placements).loads.on(from);
        ids.into_iter().filter(|id| self.shared.relocate(*id, to)).count()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.placements).over = true;
        self.shared.noted.notify_all();
        self.full_watch.end();
    }
}

impl Shared {
    fn at(self: &Arc<Self>, reactor: usize, id: u64) -> ReactorLease {
        let handle = self.handles.get(reactor).expect("loads know of these reactors only").clone();
        ReactorLease { handle, id, shared: Arc::clone(self) }
    }

    /// Notifies the balancer that a queue was placed or removed.
    fn note(&self) {
        if self.handles.len() > 1 {
            lock(&self.placements).note = true;
            self.noted.notify_all();
        }
    }

    /// Moves the queue of a lease. Returns false if it is gone or cannot be moved now.
    fn relocate(self: &Arc<Self>, id: u64, to: usize) -> bool {
        let (queue_mover, twin) = {
            let mut placements = lock(&self.placements);
            let Some(placed_queue) = placements.loads.get(id) else { return false };
            let Some(queue_mover) = placed_queue.queue_mover.as_ref().and_then(Weak::upgrade)
            else {
                return false;
            };
            (queue_mover, placements.loads.add_move_target(id, to))
        };
        let Some(twin) = twin else { return false };
        let moved = queue_mover.move_queue(id, self.at(to, twin));
        let mut placements = lock(&self.placements);
        placements.loads.moved([id, twin]);
        placements.moves += u64::from(moved);
        moved
    }
}

impl ReactorLease {
    /// Returns the reactor.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the number of this lease in its pool.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for ReactorLease {
    fn drop(&mut self) {
        // The removed queue may hold leases itself, so drop it after the lock is released.
        let gone = lock(&self.shared.placements).loads.remove(self.id);
        if gone.is_some_and(|(_, event)| event) {
            self.shared.note();
        }
    }
}

#[cfg(test)]
mod tests;
