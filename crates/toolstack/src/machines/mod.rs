//! Machines and their plans: what is recorded comes in, what has become of it goes out.
//!
//! # Model
//! One owner works on a machine: operations come in a queue, each is planned from what is recorded
//! ([`Records`]) and from what is really there, and carried out by the drivers ([`Drivers`]) under
//! the slots of one [`Executor`]. What a step has reached is recorded as it ends; whoever waits
//! for the operation is told its end.
//!
//! # What is there
//! [`Machines::discover`] asks the drivers once; from then on it is kept up to date by every call, and
//! before each plan the hypervisor is asked again, because a guest ends by itself. A volume counts
//! as attached from the moment when the call begins, and as detached when one has ended: a call
//! that failed or was cut off may have done its work. So does a domain count as there, one that does
//! not answer: what the hypervisor says next makes that good, but it may fail to say.
//!
//! # Failures
//! After an operation that failed or was cancelled its owner settles ([`MachineOp::Settle`]), before
//! anything else is done to the machine. A call to storage that hangs is left behind: its slot of
//! its SR stays taken, its volume is not touched, and when it ends the machine is settled again.

mod attach_times;
mod discover;
mod drivers;
mod interfaces;
mod leftovers;
mod memory;
mod names;
mod observed;
mod op_hooks;
mod op_loop;
mod op_queue;
mod records;
mod step_runner;
mod storage;
#[cfg(test)]
mod tests;
mod volume_users;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::admission::{SlotUsage, StepLimits};
use model::id::{Domid, SrId, VdiId, VmId};
use model::plan::{DomainState, MachineOp};
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep_until};

pub use crate::exec::{CancelToken, Progress, ProgressFn, StepError};
pub use drivers::{DatapathProvider, Drivers};
pub use memory::{HOST_RESERVE_BYTES, HostBytes, HostMemory, Meminfo};
pub use names::{UPLINK_PREFIX, port, ports, socket, sockets, uplink};
pub use op_hooks::{MachinesConfig, OpError, OpHooks, QUEUE_DEADLINE};
pub use records::{DiskRecord, MachineRecord, Records, VifRecord, VolumeRef};

use crate::boxed_future::BoxFuture;
use crate::exec::Executor;
use crate::hv::{DomainInfo, HvError};
use crate::keyed_locks::KeyedLocks;
use crate::sr::SrError;
use memory::{MemoryReservations, MemoryShortfall};
use observed::Machine;
use volume_users::VolumeUsers;

/// Every machine of a host.
#[derive(Debug)]
pub struct Machines {
    drivers: Drivers,
    records: Arc<dyn Records>,
    settings: MachinesConfig,
    executor: Executor,
    memory: MemoryReservations,
    volumes: VolumeUsers,
    /// What is done to the interfaces of one network, by its bridge: it comes with the first and goes
    /// with the last.
    networks: KeyedLocks,
    /// Who tells what a device may do, by the device's uuid.
    tellers: KeyedLocks<Option<AppliedSettings>>,
    all: Mutex<HashMap<VmId, Arc<Machine>>>,
    next_domid: AtomicU32,
    next_carrier: AtomicU64,
}

/// What was set of a device has been told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedSettings {
    /// The generation of the records that were read for it.
    pub at: u64,
    /// Why it is not in force, if it is not.
    pub failure: Option<String>,
}

/// A volume that machines do not get; see [`Machines::lock_volume`].
#[derive(Debug)]
pub struct VolumeLock<'a> {
    machines: &'a Machines,
    vdi: VdiId,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Drop for VolumeLock<'_> {
    fn drop(&mut self) {
        drop(self.turn.take());
        self.machines.volumes.tidy(self.vdi);
    }
}

impl Machines {
    /// Nothing is known to be there: [`Machines::discover`] comes before any [`Machines::run`].
    pub fn new(drivers: Drivers, records: Arc<dyn Records>, settings: MachinesConfig) -> Arc<Self> {
        let executor = Executor::new(settings.limits);
        let next_domid = AtomicU32::new(settings.first_domid.0);
        let next_carrier = AtomicU64::new(0);
        let (memory, volumes) = (MemoryReservations::default(), VolumeUsers::default());
        let (networks, tellers, all) =
            (KeyedLocks::default(), KeyedLocks::default(), Mutex::default());
        Arc::new(Self {
            drivers,
            records,
            settings,
            executor,
            memory,
            volumes,
            networks,
            tellers,
            all,
            next_domid,
            next_carrier,
        })
    }

    /// Does an operation when its turn among those of the machine has come. The future may be
    /// dropped: the operation goes on; the job's cancel ends it. Called within a runtime.
    ///
    /// A shutdown by force goes before all that waits, and ends what runs, as soon as it is asked
    /// for. So it is for those who want that: who follows the end of a guest asks for
    /// [`MachineOp::AfterExit`], which does nothing when another operation has dealt with it.
    pub fn run(
        self: &Arc<Self>,
        vm: VmId,
        op: MachineOp,
        op_hooks: OpHooks,
    ) -> BoxFuture<'static, Result<(), OpError>> {
        let (cancel, deadline) =
            (op_hooks.cancel.clone(), Instant::now() + self.settings.queue_deadline);
        let (tell, mut told) = oneshot::channel();
        let (machine, number) = self.enqueue(vm, (op, op_hooks), deadline, tell);
        let leaves = move || machine.queue().withdraw(number).is_some();
        Box::pin(async move {
            tokio::select! {
                biased;
                outcome = &mut told => return outcome.unwrap_or(Err(OpError::Cancelled)),
                () = sleep_until(deadline) => if leaves() { return Err(OpError::Busy) },
                () = cancel.cancelled() => if leaves() { return Err(OpError::Cancelled) },
            }
            told.await.unwrap_or(Err(OpError::Cancelled))
        })
    }

    /// Learns what is there: once, before any [`Machines::run`]. Domains whose machine is not
    /// recorded are told as well.
    pub fn discover(self: &Arc<Self>) -> BoxFuture<'static, Result<Vec<DomainInfo>, HvError>> {
        Box::pin(discover::learn(Arc::clone(self)))
    }

    /// What was last seen of a machine's domain.
    pub fn domain(&self, vm: VmId) -> DomainState {
        let machine = self.lock().get(&vm).cloned();
        machine.map_or(DomainState::Absent, |machine| machine.there().domain)
    }

    /// Keeps everybody else from telling whoever serves a device, by its uuid, what is set of it, until
    /// this is dropped. Who reads what to tell when it has this, and keeps it until that is told,
    /// never tells what is older than what is in force. Whoever attaches a device does so, too.
    ///
    /// In it is what somebody has told while one waited. A network card of the host is a device here, too:
    /// its plugs and unplugs take turns.
    pub async fn lock_settings(&self, device: &str) -> OwnedMutexGuard<Option<AppliedSettings>> {
        self.tellers.of(device).await
    }

    /// How many tell what is set of a device, or wait for their turn.
    pub fn settings_waiters(&self, device: &str) -> usize {
        self.tellers.at(device)
    }

    /// Whether a machine uses the volume, or a call for it may still do something.
    pub fn volume_users(&self, vdi: VdiId) -> bool {
        self.volumes.is_used(vdi)
    }

    /// Takes a volume that no machine uses, for whoever removes or changes it: until this is
    /// dropped, machines that want it wait. `None`: as for [`Machines::volume_users`].
    pub fn lock_volume(&self, vdi: VdiId) -> Option<VolumeLock<'_>> {
        let turn = self.volumes.alone(vdi);
        // Where there is none, what `alone` has looked at is not kept for ever.
        let taken = VolumeLock { machines: self, vdi, turn };
        taken.turn.is_some().then_some(taken)
    }

    /// Detaches what an SR of this type holds attached and no machine uses: a daemon before this one
    /// may have ended between two calls. Comes after [`Machines::discover`], when the SR is attached;
    /// how many there were.
    pub fn detach_leftovers<'a>(
        &'a self,
        sr: SrId,
        kind: &'a str,
    ) -> BoxFuture<'a, Result<usize, SrError>> {
        Box::pin(leftovers::tidy(self, sr, kind))
    }

    /// A volume that a machine holds, or may hold: the first of them.
    pub fn held_volume(&self, vm: VmId) -> Option<VdiId> {
        let machine = self.lock().get(&vm).cloned()?;
        let observed = machine.there();
        observed.disks.values().next().map(|attached_volume| attached_volume.source.vdi)
    }

    /// Whether something of a machine is on the host, or a call for it may still do something.
    pub fn is_there(&self, vm: VmId) -> bool {
        let machine = self.lock().get(&vm).cloned();
        machine.is_some_and(|machine| !machine.there().is_empty())
    }

    /// Changes the limits. Steps that run go on.
    pub fn set_limits(&self, limits: StepLimits) {
        self.executor.set_limits(limits);
    }

    /// What is held of the limits, and what was held at most.
    pub fn marks(&self) -> SlotUsage {
        self.executor.marks()
    }

    fn enqueue(
        self: &Arc<Self>,
        vm: VmId,
        what: (MachineOp, OpHooks),
        deadline: Instant,
        tell: oneshot::Sender<Result<(), OpError>>,
    ) -> (Arc<Machine>, u64) {
        let mut all = self.lock();
        let machine = all.entry(vm).or_insert_with(|| Arc::new(Machine::new(vm)));
        let number = machine.queue().push(what, deadline, tell);
        self.employ(machine);
        (Arc::clone(machine), number)
    }

    /// A call of storage that was left behind has ended: what it has done is settled.
    fn call_ended(self: &Arc<Self>, machine: &Arc<Machine>) {
        let all = self.lock();
        // Where the machine was forgotten since, nothing is left to settle.
        if all.get(&machine.vm).is_some_and(|known| Arc::ptr_eq(known, machine)) {
            machine.queue().request_reconcile();
            self.employ(machine);
        }
    }

    /// Starts the machine's owner if it is not at work. The runtime may be going down.
    fn employ(self: &Arc<Self>, machine: &Arc<Machine>) {
        let mut queue = machine.queue();
        if let (false, Ok(runtime)) = (queue.owned, tokio::runtime::Handle::try_current()) {
            queue.owned = true;
            runtime.spawn(op_loop::run_op_loop(Arc::clone(self), Arc::clone(machine)));
        }
    }

    /// The machine's owner has nothing to do. False if something has come since.
    fn retire(&self, machine: &Machine) -> bool {
        let mut all = self.lock();
        let mut queue = machine.queue();
        if !queue.is_idle() {
            return false;
        }
        queue.owned = false;
        if machine.there().is_empty() {
            all.remove(&machine.vm);
        }
        true
    }

    /// A number that no domain has or had.
    fn fresh(&self) -> Domid {
        Domid(self.next_domid.fetch_add(1, Ordering::Relaxed))
    }

    /// Has addresses noted that a guest claims by an interface. A guest does without that.
    async fn watch(&self, of: &VifRecord) {
        let VifRecord { vif, bridge, mac, limits, .. } = of;
        let own = drivers::own_addresses(limits);
        if let Err(error) = self.drivers.net.watch(*vif, bridge, mac, own).await {
            tracing::warn!(%vif, %error, "its addresses are not seen on its network");
        }
    }

    fn take_memory(&self, vm: VmId, needed: u64) -> Result<(), MemoryShortfall> {
        self.memory.take(self.drivers.memory.read(), vm, needed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VmId, Arc<Machine>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
