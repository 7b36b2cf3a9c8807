//! What a reactor offers to the pollers that live on it.

use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::op::{Done, InFlight, Op, Port};
use crate::ring::{Completed, Ring, Token};
use crate::slab::Slab;
use crate::{ReactorCounters, mailbox::Mailbox};

/// Names a poller on its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerId {
    index: u32,
    generation: u32,
}

/// What a poller did in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It found work; ask again at once.
    Busy,
    /// It found nothing.
    Idle,
    /// It has ended and wants to be dropped.
    Gone,
}

/// Something that looks for work when asked. All calls come from its reactor's thread.
pub trait Poller: Any {
    /// Looks for work and does a bounded amount of it. Called every turn while hot.
    fn poll(&mut self, context: &mut Context<'_>) -> Turn;

    /// It is about to be hot: no notification is needed until [`Poller::arm`].
    fn wake(&mut self);

    /// It is about to be cold: ask to be notified, and look once more. True when there is work
    /// after all; it stays hot then.
    fn arm(&mut self) -> bool;

    /// Its eventfd was written since the last look.
    fn kicked(&mut self) {}

    /// It stays hot when idle: its reactor never sleeps.
    fn spins(&self) -> bool {
        false
    }
}

struct Resident {
    /// Out while its own method runs.
    poller: Option<Box<dyn Poller>>,
    generation: u32,
    hot: bool,
    watch: Option<u32>,
}

struct PortSlot {
    owner: PollerId,
    generation: u32,
    done: Vec<Done>,
}

enum WatchOwner {
    Poller(PollerId),
    Mailbox,
    /// Being removed; the descriptor stays open until the kernel lets go.
    Closing,
}

struct Watch {
    owner: WatchOwner,
    fd: Arc<OwnedFd>,
}

/// Everything on a reactor but its thread.
pub(crate) struct Core {
    pub(crate) ring: Ring,
    residents: Slab<Resident>,
    ports: Slab<PortSlot>,
    watches: Slab<Watch>,
    hot: Vec<PollerId>,
    generation: u32,
    pub(crate) letters: bool,
    pub(crate) stopping: bool,
    /// Read when somebody asks, once a turn.
    now: Option<Instant>,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// A reactor as the code that runs on it sees it.
pub struct Context<'a> {
    pub(crate) core: &'a mut Core,
    current: Option<PollerId>,
}

impl Core {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> std::io::Result<Self> {
        let mut core = Self {
            ring: Ring::new()?,
            residents: Slab::default(),
            ports: Slab::default(),
            watches: Slab::default(),
            hot: Vec::new(),
            generation: 0,
            letters: false,
            stopping: false,
            now: None,
            mailbox,
        };
        let bell = core.mailbox.bell();
        core.add_watch(WatchOwner::Mailbox, bell);
        Ok(core)
    }

    fn counters(&self) -> &ReactorCounters {
        &self.mailbox.counters
    }

    pub(crate) fn context(&mut self) -> Context<'_> {
        Context { core: self, current: None }
    }

    /// Nothing is hot: the thread may sleep.
    pub(crate) fn quiet(&self) -> bool {
        self.hot.is_empty() && !self.letters
    }

    /// Operations, other than timers, that the kernel still owns.
    pub(crate) fn in_kernel(&self) -> usize {
        let ops = &self.ring.ops;
        ops.indices().iter().filter(|i| ops.get(**i).is_some_and(|op| !op.timer)).count()
    }

    fn add_watch(&mut self, owner: WatchOwner, fd: Arc<OwnedFd>) -> u32 {
        let raw = fd.as_raw_fd();
        let index = self.watches.insert(Watch { owner, fd });
        self.ring.watch(raw, index);
        index
    }

    /// Delivers one completion.
    pub(crate) fn deliver(&mut self, completed: Completed) {
        match completed.token {
            Token::Op(index) => self.deliver_op(index, completed.result),
            Token::Watch(index) => self.deliver_watch(index, completed),
            Token::Ignore => {}
        }
    }

    fn deliver_op(&mut self, index: u32, result: i32) {
        let Some(op) = self.ring.ops.remove(index) else { return };
        let InFlight { port, generation, tag, buffers, timer, .. } = op;
        let Some(slot) = self.ports.get_mut(port).filter(|p| p.generation == generation) else {
            return;
        };
        let result = if timer && result == -libc::ETIME { 0 } else { result };
        slot.done.push(Done { tag, result, buffers });
        let owner = slot.owner;
        self.heat(owner);
    }

    fn deliver_watch(&mut self, index: u32, completed: Completed) {
        let Some(watch) = self.watches.get(index) else { return };
        let owner = match &watch.owner {
            WatchOwner::Closing => {
                if !completed.more {
                    self.watches.remove(index);
                }
                return;
            }
            WatchOwner::Mailbox => None,
            WatchOwner::Poller(id) => Some(*id),
        };
        if !completed.more {
            // The kernel ends a multishot poll when its queue runs over: start it again.
            let raw = watch.fd.as_raw_fd();
            self.ring.watch(raw, index);
        }
        self.counters().add_wakeup();
        match owner {
            None => self.letters = true,
            Some(id) => {
                if let Some(poller) = self.resident(id).and_then(|r| r.poller.as_mut()) {
                    poller.kicked();
                }
                self.heat(id);
            }
        }
    }

    /// Makes a poller hot.
    fn heat(&mut self, id: PollerId) {
        let Some(resident) = self.resident(id) else { return };
        if resident.hot {
            return;
        }
        resident.hot = true;
        if let Some(poller) = resident.poller.as_mut() {
            poller.wake();
        }
        self.hot.push(id);
    }

    fn resident(&mut self, id: PollerId) -> Option<&mut Resident> {
        self.residents.get_mut(id.index).filter(|r| r.generation == id.generation)
    }

    /// Asks every hot poller once.
    pub(crate) fn turn(&mut self) {
        self.now = None;
        let mut at = 0;
        while let Some(id) = self.hot.get(at).copied() {
            let stays = self.turn_one(id);
            if stays {
                at += 1;
            } else {
                self.hot.swap_remove(at);
            }
        }
    }

    /// Asks one poller; false when it went cold or ended.
    fn turn_one(&mut self, id: PollerId) -> bool {
        let Some(mut poller) = self.resident(id).and_then(|r| r.poller.take()) else {
            return false;
        };
        let turn = poller.poll(&mut Context { core: self, current: Some(id) });
        let stays = match turn {
            Turn::Busy => true,
            Turn::Gone => {
                drop(poller);
                self.evict(id);
                return false;
            }
            Turn::Idle => poller.spins() || poller.arm(),
        };
        if let Some(resident) = self.resident(id) {
            resident.poller = Some(poller);
            resident.hot = stays;
        }
        stays
    }

    fn evict(&mut self, id: PollerId) {
        if self.resident(id).is_none() {
            return;
        }
        let Some(resident) = self.residents.remove(id.index) else { return };
        if let Some(index) = resident.watch {
            self.close_watch(index);
        }
        for index in self.ports.indices() {
            if self.ports.get(index).is_some_and(|port| port.owner == id) {
                self.ports.remove(index);
            }
        }
        self.counters().set_pollers(self.residents.len() as u64);
    }

    fn close_watch(&mut self, index: u32) {
        if let Some(watch) = self.watches.get_mut(index) {
            watch.owner = WatchOwner::Closing;
            self.ring.unwatch(index);
        }
    }

    /// Drops every poller and cancels every timer: the reactor is about to end.
    pub(crate) fn evict_all(&mut self) {
        for index in self.residents.indices() {
            if let Some(resident) = self.residents.get(index) {
                let id = PollerId { index, generation: resident.generation };
                self.evict(id);
            }
        }
        for index in self.ring.ops.indices() {
            if self.ring.ops.get(index).is_some_and(|op| op.timer) {
                self.ring.cancel_timer(index);
            }
        }
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}

impl Context<'_> {
    /// Gives a poller a home on this reactor. `make` may open ports: they belong to the new
    /// poller. It starts hot; `kick`, if there is one, wakes it whenever it becomes readable.
    ///
    /// # Errors
    /// What `make` refuses.
    pub fn add_poller<P: Poller, E>(
        &mut self,
        kick: Option<OwnedFd>,
        make: impl FnOnce(&mut Context<'_>) -> Result<P, E>,
    ) -> Result<PollerId, E> {
        let generation = self.core.next_generation();
        let resident = Resident { poller: None, generation, hot: true, watch: None };
        let index = self.core.residents.insert(resident);
        let id = PollerId { index, generation };
        match make(&mut Context { core: self.core, current: Some(id) }) {
            Err(error) => {
                self.core.evict(id);
                Err(error)
            }
            Ok(poller) => {
                let owner = WatchOwner::Poller(id);
                let watch = kick.map(|fd| self.core.add_watch(owner, Arc::new(fd)));
                if let Some(resident) = self.core.resident(id) {
                    resident.poller = Some(Box::new(poller));
                    resident.watch = watch;
                }
                self.core.hot.push(id);
                let count = self.core.residents.len() as u64;
                self.core.counters().set_pollers(count);
                Ok(id)
            }
        }
    }

    /// Calls `with` on a poller and makes it hot. `None` when it is gone or of another type.
    pub fn with_poller<P: Poller, R>(
        &mut self,
        id: PollerId,
        with: impl FnOnce(&mut P, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let mut boxed = self.core.resident(id)?.poller.take()?;
        let any: &mut dyn Any = &mut *boxed;
        let result = any
            .downcast_mut::<P>()
            .map(|poller| with(poller, &mut Context { core: self.core, current: Some(id) }));
        if let Some(resident) = self.core.resident(id) {
            resident.poller = Some(boxed);
        }
        self.core.heat(id);
        result
    }

    /// Drops a poller now. Its operations in the kernel run to their end unseen.
    pub fn remove_poller(&mut self, id: PollerId) {
        self.core.evict(id);
    }

    /// A port for the poller that is being made or called.
    ///
    /// # Panics
    /// Outside of a poller: an operation must come back to somebody.
    pub fn open_port(&mut self) -> Port {
        let owner = self.current.expect("ports are opened by pollers");
        let generation = self.core.next_generation();
        let slot = PortSlot { owner, generation, done: Vec::new() };
        Port { index: self.core.ports.insert(slot), generation }
    }

    /// Starts an operation. The kernel learns of it at the end of this turn, with all others.
    pub fn submit(&mut self, port: &Port, op: Op, tag: u64) {
        let (entry, kept) = InFlight::prepare(port, op, tag);
        self.core.ring.start(entry, kept);
    }

    /// Moves what has ended into `out`.
    pub fn reap(&mut self, port: &Port, out: &mut Vec<Done>) {
        let slot = self.core.ports.get_mut(port.index);
        if let Some(slot) = slot.filter(|slot| slot.generation == port.generation) {
            out.append(&mut slot.done);
        }
    }

    /// Time of the first call in this turn: good enough for what is counted per batch.
    pub fn now(&mut self) -> Instant {
        *self.core.now.get_or_insert_with(Instant::now)
    }

    /// Time now, and for the rest of this turn: for the end of a batch.
    pub fn now_again(&mut self) -> Instant {
        *self.core.now.insert(Instant::now())
    }

    /// Counts system calls that a poller made itself.
    pub fn count_syscalls(&self, count: u64) {
        self.core.counters().add_syscalls(count);
    }

    /// Ends the reactor when the kernel has finished what it was given.
    pub(crate) fn stop(&mut self) {
        self.core.stopping = true;
    }
}
