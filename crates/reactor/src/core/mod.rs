//! State of a reactor, without its thread: pollers, watched descriptors, completion ports.

mod completions;
mod turn;

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use crate::clock::Clock;
use crate::context::{Context, Poller, PollerId};
use crate::mailbox::Mailbox;
use crate::notifier::{NotifierState, PeerNotifier};
use crate::op::{CompletionPort, OpCompletion};
use crate::ring::Ring;
use crate::slab::Slab;
use crate::spin::{SpinGuards, WaitTracker};
use crate::{EndGuards, File, ReactorCounters};

struct PollerSlot {
    /// `None` while a method of the poller runs.
    poller: Option<Box<dyn Poller>>,
    generation: u32,
    hot: bool,
    watch: Option<u32>,
    /// Wait statistics; `None` for a poller that never busy-polls.
    wait_tracker: Option<Box<WaitTracker>>,
}

struct PortSlot {
    owner: PollerId,
    generation: u32,
    op_completion: Vec<OpCompletion>,
}

enum WatchOwner {
    Poller(PollerId),
    Mailbox,
    /// The watch is being removed. The descriptor stays open until the kernel releases it.
    Closing,
}

struct Watch {
    owner: WatchOwner,
    fd: Arc<OwnedFd>,
}

/// State of a reactor, without its thread.
pub(crate) struct Core {
    pub(crate) ring: Ring,
    pollers: Slab<PollerSlot>,
    ports: Slab<PortSlot>,
    watches: Slab<Watch>,
    /// Notifiers by number, with their owner. Numbers are not reused soon, so a late completion of
    /// a closed notifier finds no entry.
    notifiers: HashMap<u32, (PollerId, Rc<NotifierState>)>,
    hot: Vec<PollerId>,
    generation: u32,
    pub(crate) tasks: bool,
    pub(crate) stopping: bool,
    pub(crate) clock: Clock,
    /// Time since which no turn has found work; 0 if the last turn found some.
    idle_since: u64,
    idle_turns: u32,
    pub(crate) guards: SpinGuards,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) end_guards: EndGuards,
}

impl Core {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> std::io::Result<Self> {
        crate::cpus::register(&mailbox.spin_request);
        let mut core = Self {
            ring: Ring::new()?,
            pollers: Slab::default(),
            ports: Slab::default(),
            watches: Slab::default(),
            notifiers: HashMap::new(),
            hot: Vec::new(),
            generation: 0,
            tasks: false,
            stopping: false,
            clock: Clock::default(),
            idle_since: 0,
            idle_turns: 0,
            guards: SpinGuards::new(mailbox.spin_request.clone()),
            mailbox,
            end_guards: EndGuards::default(),
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

    /// Returns whether no poller is hot and no task waits, so that the thread may sleep.
    pub(crate) fn is_idle(&self) -> bool {
        self.hot.is_empty() && !self.tasks
    }

    /// Returns whether this turn polls at most one poller.
    pub(crate) fn is_alone(&self) -> bool {
        self.hot.len() <= 1
    }

    /// Returns the number of operations, other than timers, that the kernel still owns.
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

    pub(crate) fn open_bell(&mut self, owner: PollerId, file: File) -> PeerNotifier {
        let id = self.next_generation();
        let state = Rc::new(NotifierState::new(id, file));
        self.notifiers.insert(id, (owner, state.clone()));
        PeerNotifier(state)
    }

    pub(crate) fn close_notifier(&mut self, bell: &NotifierState) {
        if self.notifiers.remove(&bell.id).is_some() {
            self.ring.close_notifier(bell);
        }
    }

    /// Makes a poller hot.
    pub(crate) fn make_runnable(&mut self, id: PollerId) {
        let Some(poller_slot) = self.resident(id) else { return };
        if poller_slot.hot {
            return;
        }
        poller_slot.hot = true;
        if let Some(poller) = poller_slot.poller.as_mut() {
            poller.on_runnable();
        }
        self.hot.push(id);
    }

    fn resident(&mut self, id: PollerId) -> Option<&mut PollerSlot> {
        self.pollers.get_mut(id.index).filter(|r| r.generation == id.generation)
    }

    pub(crate) fn remove_poller(&mut self, id: PollerId) {
        if self.resident(id).is_none() {
            return;
        }
        let Some(poller_slot) = self.pollers.remove(id.index) else { return };
        if let Some(index) = poller_slot.watch {
            self.close_watch(index);
        }
        for index in self.ports.indices() {
            if self.ports.get(index).is_some_and(|port| port.owner == id) {
                self.ports.remove(index);
            }
        }
        let bells = self.notifiers.values().filter(|(owner, _)| *owner == id);
        let bells: Vec<_> = bells.map(|(_, state)| state.clone()).collect();
        for bell in bells {
            self.close_notifier(&bell);
        }
        self.counters().set_pollers(self.pollers.len() as u64);
    }

    fn close_watch(&mut self, index: u32) {
        if let Some(watch) = self.watches.get_mut(index) {
            watch.owner = WatchOwner::Closing;
            self.ring.unwatch(index);
        }
    }

    /// Drops all pollers and cancels all timers before the reactor ends.
    pub(crate) fn evict_all(&mut self) {
        for index in self.pollers.indices() {
            if let Some(poller_slot) = self.pollers.get(index) {
                let id = PollerId { index, generation: poller_slot.generation };
                self.remove_poller(id);
            }
        }
        for index in self.ring.ops.indices() {
            if self.ring.ops.get(index).is_some_and(|op| op.timer) {
                self.ring.cancel_timer(index);
            }
        }
    }

    /// Reserves a slot for a poller that is being made. The poller may open completion ports from
    /// now on.
    pub(crate) fn reserve(&mut self) -> PollerId {
        let generation = self.next_generation();
        let poller_slot =
            PollerSlot { poller: None, generation, hot: true, watch: None, wait_tracker: None };
        PollerId { index: self.pollers.insert(poller_slot), generation }
    }

    /// Stores a poller in its slot and makes it hot. From then on `kick` wakes it.
    pub(crate) fn install_poller(
        &mut self,
        id: PollerId,
        poller: Box<dyn Poller>,
        kick: Option<Arc<OwnedFd>>,
    ) {
        let wait_tracker =
            poller.polling().map(|poll_control| Box::new(WaitTracker::new(poll_control)));
        let owner = WatchOwner::Poller(id);
        let watch = kick.map(|fd| self.add_watch(owner, fd));
        if let Some(poller_slot) = self.resident(id) {
            (poller_slot.poller, poller_slot.watch, poller_slot.wait_tracker) =
                (Some(poller), watch, wait_tracker);
        }
        self.hot.push(id);
        self.counters().set_pollers(self.pollers.len() as u64);
    }

    /// Takes a poller out of its slot for a call.
    pub(crate) fn take_poller(&mut self, id: PollerId) -> Option<Box<dyn Poller>> {
        self.resident(id)?.poller.take()
    }

    /// Puts the poller back and makes it hot, because the call may have created work.
    pub(crate) fn put_poller(&mut self, id: PollerId, poller: Box<dyn Poller>) {
        if let Some(poller_slot) = self.resident(id) {
            poller_slot.poller = Some(poller);
        }
        self.make_runnable(id);
    }

    pub(crate) fn open_port(&mut self, owner: PollerId) -> CompletionPort {
        let generation = self.next_generation();
        let slot = PortSlot { owner, generation, op_completion: Vec::new() };
        CompletionPort { index: self.ports.insert(slot), generation }
    }

    pub(crate) fn reap(&mut self, port: &CompletionPort, out: &mut Vec<OpCompletion>) {
        let slot = self.ports.get_mut(port.index);
        if let Some(slot) = slot.filter(|slot| slot.generation == port.generation) {
            out.append(&mut slot.op_completion);
        }
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}
