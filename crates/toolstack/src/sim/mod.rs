//! A host that is not there: hypervisor, storage, datapath and network in memory, for tests and for
//! `ringwayd --hypervisor simulator`.
//!
//! # Model
//! Each driver of [`drivers`] calls [`Sim`], which asks its [`Rule`] for the call's [`SimBehaviour`]: how
//! long it takes, and whether it is done, fails or hangs. What a real host would suffer from is
//! refused and noted in [`Sim::broken`]. Guests end by themselves when they are asked to, or when
//! somebody says so.
//!
//! A `Sim` outlives whoever uses it, as guests outlive the daemon: drop the runtime in which the
//! calls were made, and begin again with the same one. One that is [opened](Sim::publish_join_link) in a
//! directory outlives its process as well: what was there is there again, and a file of
//! [rules] says what becomes of calls.

mod call;
mod journal;
pub mod rules;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use model::id::{Domid, VbdId, VifId, VmId};
use model::plan::RunState;
use model::vm::exits::DomainExit;
use tokio::sync::{Mutex as Monitor, OwnedMutexGuard, mpsc, watch};

use call::Counts;
pub use call::{Call, CallKind, Rule, SimBehaviour, SimMarks, SimResult};
pub(crate) use state::{Disk, Domain, Port, State, Volume, image, vdi_of};

use crate::hv::sim::SimHv;
use crate::hv::{DomainEvent, GuestInfo};
use crate::machines::{Drivers, HostBytes, HostMemory};
use crate::net::sim::SimNet;
use crate::ringway_io::sim::{SimPaths, SimSwitch};
use crate::sr::delay::DelayedDriver;
use crate::sr::sim::SimSr;

/// Events that wait for whoever listens; past it the oldest stay and new ones are lost, which
/// `find` makes up for.
const EVENTS: usize = 4096;
/// Memory of a host that is not there, in bytes: enough for a thousand machines.
const HOST_BYTES: u64 = 16 << 40;

/// A host that is not there.
#[derive(Debug)]
pub struct Sim {
    rule: watch::Sender<Arc<Rule>>,
    state: Mutex<State>,
    /// Rises when something of a domain has changed.
    changed: watch::Sender<u64>,
    counts: Mutex<Counts>,
    /// A hypervisor carries out the commands for one domain one after the other.
    monitors: Mutex<HashMap<VmId, Arc<Monitor<()>>>>,
    events: Mutex<EventChannel<DomainEvent>>,
    claims: Mutex<EventChannel<VifId>>,
}

/// What is told to the first who wants to know.
type EventChannel<T> = (mpsc::Sender<T>, Option<mpsc::Receiver<T>>);

fn told<T>() -> Mutex<EventChannel<T>> {
    let (tell, told) = mpsc::channel(EVENTS);
    Mutex::new((tell, Some(told)))
}

/// Drivers of a simulated host. Its storage answers to the types `dir` and `sim`; an SR of the
/// latter may be given [delays](crate::sr::delay).
pub fn drivers(sim: &Arc<Sim>) -> Drivers {
    Drivers {
        hv: Arc::new(SimHv(Arc::clone(sim))),
        io: Arc::new(SimPaths(Arc::clone(sim))),
        net: Arc::new(SimNet(Arc::clone(sim))),
        switch: Arc::new(SimSwitch(Arc::clone(sim))),
        memory: Arc::new(SimMemory(HostBytes { total: HOST_BYTES, available: HOST_BYTES })),
        srs: vec![
            Arc::new(SimSr::new(sim, "dir")),
            Arc::new(DelayedDriver::new("sim", Arc::new(SimSr::new(sim, "sim")))),
        ],
    }
}

/// Memory that is as it is said to be.
#[derive(Clone, Copy, Debug)]
pub struct SimMemory(pub HostBytes);

impl HostMemory for SimMemory {
    fn read(&self) -> HostBytes {
        self.0
    }
}

impl Default for Sim {
    fn default() -> Self {
        Self {
            rule: watch::Sender::new(Rule::new(|_| SimBehaviour::default())),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            counts: Mutex::default(),
            monitors: Mutex::default(),
            events: told(),
            claims: told(),
        }
    }
}

impl Sim {
    /// A host on which every call works at once.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The host that is kept in this directory, or an empty one. Its file of [rules] holds from here
    /// on. Called within a runtime.
    ///
    /// # Errors
    /// The directory cannot be used, or what is in it is wrong.
    pub fn open(dir: &Path) -> io::Result<Arc<Self>> {
        let state = Mutex::new(State::open(dir)?);
        let sim = Arc::new(Self { state, ..Self::default() });
        rules::follow(&sim, dir)?;
        Ok(sim)
    }

    /// Says what becomes of calls from here on. Calls that hang are asked about again.
    pub fn rule(&self, rule: impl Fn(&Call) -> SimBehaviour + Send + Sync + 'static) {
        self.rule.send_replace(Rule::new(rule));
    }

    /// The host has a network card of this name. As the host's kernel knows cards, nothing of them
    /// outlives the process.
    pub fn add_card(&self, name: &str) {
        let mut state = self.state();
        state.cards.insert(name.to_owned(), None);
        state.cards_changed.send_replace(());
    }

    /// It has not any more.
    pub fn remove_card(&self, name: &str) {
        let mut state = self.state();
        state.cards.remove(name);
        state.cards_changed.send_replace(());
    }

    /// The host has an address on this card, or none any more.
    pub fn reach_by(&self, card: &str, address: Option<IpAddr>) {
        let mut state = self.state();
        match address {
            Some(address) => state.reached.insert(card.to_owned(), address),
            None => state.reached.remove(card),
        };
        state.cards_changed.send_replace(());
    }

    /// Network cards, and the bridge that each is in.
    pub fn cards(&self) -> Vec<(String, Option<String>)> {
        self.state().cards.clone().into_iter().collect()
    }

    /// A guest ends by itself, in this way. Nothing happens where there is none.
    pub fn end_guest(&self, vm: VmId, exit: DomainExit) {
        let ended = self.ends(vm, |domain| {
            let alive = domain.run.filter(|run| !matches!(run, RunState::Ended(_)));
            alive.map(|_| domain.end(exit))
        });
        self.domain_ended(vm, ended, exit);
    }

    /// A process ends, as from a signal.
    pub fn kill_process(&self, vm: VmId) {
        let killed = self.ends(vm, Domain::kill);
        self.domain_ended(vm, killed, DomainExit::Killed);
    }

    /// A guest lets go of devices that nobody waits for any more.
    pub fn release_devices(&self, vm: VmId, disks: &[VbdId], nics: &[VifId]) {
        self.ends(vm, |domain| {
            domain.disks.retain(|vbd, _| !disks.contains(vbd));
            domain.nics.retain(|vif, _| !nics.contains(vif));
            None
        });
        self.tell(DomainEvent::Unplugged { vm });
    }

    /// A guest claims an address on the network of an interface that it has. Nothing happens if
    /// nobody watches that.
    pub fn claim(&self, vif: VifId, address: IpAddr) {
        let mut state = self.state();
        if let Some(known) = state.claimed.get_mut(&vif) {
            known.insert(0, address);
            let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = claims.0.try_send(vif);
        }
    }

    /// A machine's guest has an agent, which tells this from now on.
    pub fn agent(&self, vm: VmId, tells: GuestInfo) {
        self.state().agents.insert(vm, tells);
    }

    /// What a real host would have suffered from.
    pub fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }

    /// What is there, in words, one line each: nothing when all was taken down. Bridges stay.
    pub fn leftovers(&self) -> Vec<String> {
        self.state().leftovers()
    }

    /// How many calls there were, and how many at once.
    pub fn marks(&self) -> SimMarks {
        self.counts().marks()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens from now on; nothing while another has it. Who had it may have gone, as a daemon
    /// goes from guests that stay.
    pub(crate) fn take_events(&self) -> Option<mpsc::Receiver<DomainEvent>> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.0.is_closed() {
            let (tell, told) = mpsc::channel(EVENTS);
            *events = (tell, Some(told));
        }
        events.1.take()
    }

    pub(crate) fn take_claims(&self) -> Option<mpsc::Receiver<VifId>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).1.take()
    }

    /// Waits until no other command for this domain runs.
    pub(crate) async fn monitor(&self, vm: VmId) -> OwnedMutexGuard<()> {
        let monitor = {
            let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(monitors.entry(vm).or_default())
        };
        monitor.lock_owned().await
    }

    /// Ends when something of a domain has changed since `seen` was made.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn has_changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn ends(&self, vm: VmId, end: impl FnOnce(&mut Domain) -> Option<Domid>) -> Option<Domid> {
        let mut state = self.state();
        let ended = state.domains.get_mut(&vm).and_then(end);
        state.keep_domain(vm);
        ended
    }

    fn domain_ended(&self, vm: VmId, domid: Option<Domid>, exit: DomainExit) {
        let Some(domid) = domid else { return };
        self.has_changed();
        self.tell(DomainEvent::Ended { vm, domid, exit, at: SystemTime::now() });
    }

    fn tell(&self, event: DomainEvent) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = events.0.try_send(event);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
