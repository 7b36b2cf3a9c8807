//! The reactors of a process, and which of them serves a queue.
//!
//! A queue is placed on the reactor whose queues were least busy of late, and moved when others
//! have come or gone and the reactors are no longer evenly busy. How busy a queue is, is read from
//! its counter when something is placed, moved or told: nothing is sampled while nothing changes.
//!
//! Switches have the first of them only ([`Pool::of_networks`]): what two ports on different reactors
//! send each other is copied once more.
//!
//! ```text
//!   place, give back ──> note ──> balancer: waits a moment, reads, decides ([`load`])
//!                                    └──> Tenant::move_lodger ──> drained here, started there
//! ```

mod balance;
mod load;
mod size;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use reactor::{Handle, OwnerId, Reactor};

use self::load::ReactorLoads;
pub use self::size::PoolSize;

/// Reactors, with what is placed on them. Dropping it ends them.
#[derive(Debug)]
pub struct Pool {
    reactors: Vec<Reactor>,
    size: PoolSize,
    shared: Arc<Shared>,
}

/// What the balancer and every place hold of a pool.
#[derive(Debug)]
struct Shared {
    handles: Vec<Handle>,
    placements: Mutex<Placements>,
    noted: Condvar,
}

#[derive(Debug, Default)]
struct Placements {
    loads: ReactorLoads<PlacedQueue>,
    /// Something was placed or given back since the balancer looked.
    note: bool,
    /// Queues that were moved.
    moves: u64,
    /// The pool is gone.
    over: bool,
}

/// Who moves a queue from one reactor to another.
pub(crate) trait QueueMover: Send + Sync {
    /// Has what lives in the place of this number live in `to`, if that is there and can be
    /// drained soon; otherwise all stays as it is. True when it has moved.
    fn move_lodger(&self, from: u64, to: ReactorLease) -> bool;
}

/// What lives in a place.
#[derive(Clone)]
pub(crate) struct PlacedQueue {
    /// Whose it is: what belongs together is spread.
    pub(crate) label: OwnerId,
    /// Nanoseconds that it has been busy for; absent where nobody counts them.
    pub(crate) busy_ns: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    /// Who can move it.
    pub(crate) queue_mover: Option<Weak<dyn QueueMover>>,
}

impl PlacedQueue {
    /// One who cannot be moved and whose load nobody counts.
    fn of_nobody() -> Self {
        Self { label: 0, busy_ns: None, queue_mover: None }
    }
}

impl std::fmt::Debug for PlacedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lodger").field("label", &self.label).finish_non_exhaustive()
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

/// A place on a reactor; dropping it gives the place back.
#[derive(Debug)]
pub struct ReactorLease {
    handle: Handle,
    id: u64,
    shared: Arc<Shared>,
}

fn lock(placements: &Mutex<Placements>) -> MutexGuard<'_, Placements> {
    // Every change is a whole step: a panic elsewhere leaves it whole.
    placements.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts as many reactors as `size` says.
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
        Ok(Self { reactors, size, shared })
    }

    /// Why there are so many reactors.
    pub fn size(&self) -> &PoolSize {
        &self.size
    }

    /// A place for something that cannot be moved and whose load nobody counts.
    pub fn place(&self) -> ReactorLease {
        self.place_among(self.reactors.len(), PlacedQueue::of_nobody())
    }

    /// The same, among the reactors that have switches.
    pub fn place_in_networks(&self) -> ReactorLease {
        self.place_among(self.of_networks().len(), PlacedQueue::of_nobody())
    }

    /// A place on the least loaded reactor.
    pub(crate) fn place_lodger(&self, placed_queue: PlacedQueue) -> ReactorLease {
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

    /// Each reactor, with the places taken on it.
    pub fn reactors(&self) -> Vec<(&Handle, usize)> {
        let counts = lock(&self.shared.placements).loads.counts();
        self.reactors.iter().map(Reactor::handle).zip(counts).collect()
    }

    /// The reactors that have switches, the first ones: see [`PoolSize::beside_guests`].
    pub fn of_networks(&self) -> Vec<&Handle> {
        let most = self.size.beside_guests().reactors();
        self.reactors.iter().map(Reactor::handle).take(most).collect()
    }

    /// Queues that were moved from one reactor to another.
    pub fn moves(&self) -> u64 {
        lock(&self.shared.placements).moves
    }

    /// Has everything on the reactor of this number move to the next one; returns how many have.
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
    }
}

impl Shared {
    fn at(self: &Arc<Self>, reactor: usize, id: u64) -> ReactorLease {
        let handle = self.handles.get(reactor).expect("loads know of these reactors only").clone();
        ReactorLease { handle, id, shared: Arc::clone(self) }
    }

    /// Tells the balancer that something has come or gone.
    fn note(&self) {
        if self.handles.len() > 1 {
            lock(&self.placements).note = true;
            self.noted.notify_all();
        }
    }

    /// Moves what is in a place; false: it is gone, or cannot be moved now.
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
        let moved = queue_mover.move_lodger(id, self.at(to, twin));
        let mut placements = lock(&self.placements);
        placements.loads.moved([id, twin]);
        placements.moves += u64::from(moved);
        moved
    }
}

impl ReactorLease {
    /// The reactor.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Names it in its pool.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for ReactorLease {
    fn drop(&mut self) {
        // What lived there may hold places itself.
        let gone = lock(&self.shared.placements).loads.remove(self.id);
        if gone.is_some_and(|(_, event)| event) {
            self.shared.note();
        }
    }
}

#[cfg(test)]
mod tests;
