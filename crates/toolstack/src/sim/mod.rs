//! Simulated host: hypervisor, storage, datapath and network in memory, for tests and for `ringwayd
//! --hypervisor simulator`.
//!
//! # Model
//! Each driver of [`drivers`] calls [`Sim`], which asks its [`Rule`] for the call's
//! [`SimBehaviour`]: its delay, and whether it takes effect, fails or hangs. Misuse that would harm
//! a real host is refused and recorded in [`Sim::broken`]. Guests end on request, or when a test
//! ends them.
//!
//! A `Sim` outlives its user, as guests outlive the daemon: drop the runtime of the calls, and
//! continue with the same `Sim`. A `Sim` [opened](Sim::open) in a directory outlives its process
//! too. Its state is restored, and a file of [rules] decides the behaviour of calls.

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

use model::calibration::StorageProfile;
use model::id::{Domid, SrId, VbdId, VifId, VmId};
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
use crate::ringway_io::FullDisks;
use crate::ringway_io::sim::{SimPaths, SimSwitch};
use crate::sr::delay::DelayedDriver;
use crate::sr::sim::SimSr;

/// Most events that wait for the receiver. Beyond that, new events are lost, and `find` corrects
/// the state.
const EVENTS: usize = 4096;
/// Memory of a simulated host in bytes: enough for a thousand machines.
const HOST_BYTES: u64 = 16 << 40;

/// Simulated host.
#[derive(Debug)]
pub struct Sim {
    rule: watch::Sender<Arc<Rule>>,
    state: Mutex<State>,
    /// Counter of changes of domains.
    changed: watch::Sender<u64>,
    counts: Mutex<Counts>,
    /// Locks of the domains: a hypervisor executes the commands of one domain one after the other.
    monitors: Mutex<HashMap<VmId, Arc<Monitor<()>>>>,
    events: Mutex<EventChannel<DomainEvent>>,
    claims: Mutex<EventChannel<VifId>>,
    full_disks: Mutex<EventChannel<FullDisks>>,
    profiles: Mutex<Profiles>,
}

/// Profile of every storage, if it is simulated, and the SRs whose storage was measured.
type Profiles = (Option<StorageProfile>, Vec<SrId>);

/// Sender of events, and the receiver until the first caller takes it.
type EventChannel<T> = (mpsc::Sender<T>, Option<mpsc::Receiver<T>>);

fn event_channel<T>() -> Mutex<EventChannel<T>> {
    let (sender, receiver) = mpsc::channel(EVENTS);
    Mutex::new((sender, Some(receiver)))
}

/// Returns the receiver; `None` while another one exists. An earlier one may have been dropped with
/// its daemon.
fn take_receiver<T>(channel: &Mutex<EventChannel<T>>) -> Option<mpsc::Receiver<T>> {
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    if channel.0.is_closed() {
        let (sender, receiver) = mpsc::channel(EVENTS);
        *channel = (sender, Some(receiver));
    }
    channel.1.take()
}

/// Creates the drivers of a simulated host. Its SR types are `dir` and `sim`. An SR of type `sim`
/// may have [delays](crate::sr::delay).
pub fn drivers(sim: &Arc<Sim>) -> Drivers {
    Drivers {
        hv: Arc::new(SimHv(Arc::clone(sim))),
        io: Arc::new(SimPaths(Arc::clone(sim))),
        net: Arc::new(SimNet(Arc::clone(sim))),
        switch: Arc::new(SimSwitch(Arc::clone(sim))),
        cpus: None,
        memory: Arc::new(SimMemory(HostBytes { total: HOST_BYTES, available: HOST_BYTES })),
        srs: vec![
            Arc::new(SimSr::new(sim, "dir")),
            Arc::new(DelayedDriver::new("sim", Arc::new(SimSr::new(sim, "sim")))),
        ],
    }
}

/// Memory source with fixed values.
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
            events: event_channel(),
            claims: event_channel(),
            full_disks: event_channel(),
            profiles: Mutex::default(),
        }
    }
}

impl Sim {
    /// Creates a host on which every call succeeds at once.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Opens the host that is stored in this directory, or an empty one. Its file of [rules]
    /// applies from here on. Must be called within a runtime.
    ///
    /// # Errors
    /// The directory cannot be used, or its content is invalid.
    pub fn open(dir: &Path) -> io::Result<Arc<Self>> {
        let state = Mutex::new(State::open(dir)?);
        let sim = Arc::new(Self { state, ..Self::default() });
        rules::follow(&sim, dir)?;
        Ok(sim)
    }

    /// Replaces the rule. Hanging calls get the new rule's behaviour.
    pub fn rule(&self, rule: impl Fn(&Call) -> SimBehaviour + Send + Sync + 'static) {
        self.rule.send_replace(Rule::new(rule));
    }

    /// Adds a host NIC with this name. As in a real kernel, host NICs do not outlive the process.
    pub fn add_card(&self, name: &str) {
        let mut state = self.state();
        state.cards.insert(name.to_owned(), None);
        state.cards_changed.send_replace(());
    }

    /// Removes a host NIC.
    pub fn remove_card(&self, name: &str) {
        let mut state = self.state();
        state.cards.remove(name);
        state.cards_changed.send_replace(());
    }

    /// Sets or removes an address of the host on this NIC.
    pub fn reach_by(&self, card: &str, address: Option<IpAddr>) {
        let mut state = self.state();
        match address {
            Some(address) => state.reached.insert(card.to_owned(), address),
            None => state.reached.remove(card),
        };
        state.cards_changed.send_replace(());
    }

    /// Returns the host NICs, each with its bridge.
    pub fn cards(&self) -> Vec<(String, Option<String>)> {
        self.state().cards.clone().into_iter().collect()
    }

    /// Ends a guest by itself, for this reason. Does nothing without a guest.
    pub fn end_guest(&self, vm: VmId, exit: DomainExit) {
        let ended = self.ends(vm, |domain| {
            let alive = domain.run.filter(|run| !matches!(run, RunState::Ended(_)));
            alive.map(|_| domain.end(exit))
        });
        self.domain_ended(vm, ended, exit);
    }

    /// Ends a process, as a signal does.
    pub fn kill_process(&self, vm: VmId) {
        let killed = self.ends(vm, Domain::kill);
        self.domain_ended(vm, killed, DomainExit::Killed);
    }

    /// Releases devices of a guest for which no call waits any more.
    pub fn release_devices(&self, vm: VmId, disks: &[VbdId], nics: &[VifId]) {
        self.ends(vm, |domain| {
            domain.disks.retain(|vbd, _| !disks.contains(vbd));
            domain.nics.retain(|vif, _| !nics.contains(vif));
            None
        });
        self.publish(DomainEvent::Unplugged { vm });
    }

    /// Claims an address for a guest's interface. Does nothing if the interface is not watched.
    pub fn claim(&self, vif: VifId, address: IpAddr) {
        let mut state = self.state();
        if let Some(known) = state.claimed.get_mut(&vif) {
            known.insert(0, address);
            let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = claims.0.try_send(vif);
        }
    }

    /// Gives a machine's guest an agent with this information.
    pub fn agent(&self, vm: VmId, guest_info: GuestInfo) {
        self.state().agents.insert(vm, guest_info);
    }

    /// Reports that the storage of these disks of an SR is full, and that of its others is not.
    pub fn full_disks(&self, sr: SrId, disks: &[VbdId]) {
        let disks = disks.iter().copied().collect();
        let full_disks = self.full_disks.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = full_disks.0.try_send(FullDisks { sr, disks });
    }

    /// Lets the agent of a guest report file systems that are mounted from this disk.
    pub fn mounts(&self, vbd: VbdId, points: &[&str]) {
        let points = points.iter().map(|point| (*point).to_owned()).collect();
        self.state().mounts.insert(vbd, points);
    }

    /// Returns the misuse that would have harmed a real host.
    pub fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }

    /// Describes the existing objects, one in each line; empty if all were removed. Bridges are not
    /// included.
    pub fn leftovers(&self) -> Vec<String> {
        self.state().leftovers()
    }

    /// Returns the number of volumes of all SRs.
    pub fn volumes(&self) -> usize {
        self.state().volumes.len()
    }

    /// Reports that the guest's agent answers.
    pub fn guest_ready(&self, vm: VmId) {
        self.publish(DomainEvent::GuestReady { vm });
    }

    /// Gives an SR images that can be merged, so many times.
    pub fn add_merges(&self, sr: SrId, count: usize) {
        self.state().merges.entry(sr).or_default().left += count;
    }

    /// Returns how many merges of images of an SR have not ended.
    pub fn merges_left(&self, sr: SrId) -> usize {
        self.state().merges.get(&sr).map_or(0, |merges| merges.left)
    }

    /// Returns the counters of calls.
    pub fn marks(&self) -> SimMarks {
        self.counts().marks()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the receiver of events from now on.
    pub(crate) fn take_events(&self) -> Option<mpsc::Receiver<DomainEvent>> {
        take_receiver(&self.events)
    }

    /// Lets the measurement of every storage find this profile.
    pub fn set_profile(&self, profile: StorageProfile) {
        self.profiles().0 = Some(profile);
    }

    /// Returns the SRs whose storage was measured.
    pub fn measured(&self) -> Vec<SrId> {
        self.profiles().1.clone()
    }

    pub(crate) fn profile(&self, sr: SrId) -> Option<StorageProfile> {
        let mut profiles = self.profiles();
        profiles.1.push(sr);
        profiles.0.clone()
    }

    fn profiles(&self) -> MutexGuard<'_, Profiles> {
        self.profiles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take_full_disks(&self) -> Option<mpsc::Receiver<FullDisks>> {
        take_receiver(&self.full_disks)
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

    /// Returns a receiver of changes of domains.
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
        self.publish(DomainEvent::Ended { vm, domid, exit, at: SystemTime::now() });
    }

    fn publish(&self, event: DomainEvent) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = events.0.try_send(event);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
