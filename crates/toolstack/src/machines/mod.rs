//! Machines and their plans: operations come in, effects are recorded.
//!
//! # Model
//! An operation loop executes a machine's operations, which wait in a queue. It plans each from the
//! record ([`Records`]) and the observed state. The drivers ([`Drivers`]) execute the plan, within
//! the slots of one [`Executor`]. The effects of a step are recorded as it ends. The caller
//! receives the result of the operation.
//!
//! # Observed state
//! [`Machines::discover`] queries the drivers once. From then on every call updates the state.
//! Before each plan the hypervisor is queried again, because a guest can end by itself.
//!
//! A volume counts as attached from the start of the attach call until a detach has succeeded: a
//! failed or dropped call may have done its work. In the same way a domain that does not answer
//! counts as existing. The hypervisor's next answer corrects that.
//!
//! # Failures
//! After an operation that failed or was cancelled, the operation loop reconciles the machine
//! ([`MachineOp::Reconcile`]) before its next operation. A storage call that hangs is abandoned. It
//! still occupies its SR's slot, and its volume is not touched. When it ends, the machine is
//! reconciled again.

mod attach_times;
mod boot_images;
mod boots;
mod coalesce;
mod discover;
mod drivers;
mod foreign;
mod interfaces;
mod leftovers;
mod memory;
mod names;
mod observed;
mod op_hooks;
mod op_loop;
mod op_queue;
mod records;
mod resets;
mod snapshots;
mod step_error;
mod step_runner;
mod storage;
mod streams;
#[cfg(test)]
mod tests;
mod volume_users;
mod volumes;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::admission::{SlotUsage, StepLimits};
use model::id::{Domid, SrId, VdiId, VmId};
use model::plan::{DomainState, MachineOp};
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep_until};

pub use crate::exec::{CancelToken, Progress, ProgressFn, StepTimeout};
pub use boots::{BootStage, BootTimes, CpuTime, HostCpus, ProcStat};
pub use coalesce::{MergeOutcome, MergeState};
pub use drivers::{DatapathProvider, Drivers};
pub use foreign::PassedOver;
pub use memory::{HOST_RESERVE_BYTES, HostBytes, HostMemory, Meminfo};
pub use names::{UPLINK_PREFIX, port, ports, socket, sockets, uplink};
pub use op_hooks::{MachinesConfig, OpError, OpHooks, QUEUE_DEADLINE};
pub use records::{DiskRecord, MachineRecord, Records, VifRecord, VolumeRef};
pub use snapshots::SnapshotPlan;
pub use step_error::StepError;
pub use streams::{Imported, VolumeImport};

use crate::boxed_future::BoxFuture;
use crate::exec::Executor;
use crate::hv::{DomainInfo, HvError};
use crate::keyed_locks::KeyedLocks;
use crate::sr::SrError;
use boots::Boots;
use memory::{MemoryReservations, MemoryShortfall};
use observed::Machine;
use volume_users::VolumeUsers;

/// All machines of a host.
#[derive(Debug)]
pub struct Machines {
    drivers: Drivers,
    records: Arc<dyn Records>,
    settings: MachinesConfig,
    executor: Executor<StepError>,
    memory: MemoryReservations,
    boots: Arc<Boots>,
    volumes: VolumeUsers,
    /// Locks of networks, by bridge. The first interface of a network creates its uplink, and the
    /// last one removes it.
    networks: KeyedLocks,
    /// Locks of the devices whose settings are applied, by the device's UUID.
    settings_locks: KeyedLocks<Option<AppliedSettings>>,
    all: Mutex<HashMap<VmId, Arc<Machine>>>,
    next_domid: AtomicU32,
    next_carrier: AtomicU64,
}

/// Result of applying a device's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedSettings {
    /// Generation of the records that were read for it.
    pub at: u64,
    /// Reason why the settings are not in force, if they are not.
    pub failure: Option<String>,
}

/// Lock that keeps machines from a volume; see [`Machines::lock_volume`].
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
    /// Creates the registry without observed state. Call [`Machines::discover`] before any
    /// [`Machines::run`].
    pub fn new(drivers: Drivers, records: Arc<dyn Records>, settings: MachinesConfig) -> Arc<Self> {
        let executor = Executor::new(settings.limits);
        let next_domid = AtomicU32::new(settings.first_domid.0);
        let next_carrier = AtomicU64::new(0);
        let boots = Boots::new(settings.limits.boots, drivers.cpus.clone());
        let (memory, volumes) = (MemoryReservations::default(), VolumeUsers::default());
        let (networks, tellers, all) =
            (KeyedLocks::default(), KeyedLocks::default(), Mutex::default());
        Arc::new(Self {
            drivers,
            records,
            settings,
            executor,
            memory,
            boots,
            volumes,
            networks,
            settings_locks: tellers,
            all,
            next_domid,
            next_carrier,
        })
    }

    /// Queues an operation and waits for its result.
    ///
    /// The future may be dropped: the operation continues. The cancel token of `op_hooks` ends it.
    /// Must be called within a runtime.
    ///
    /// A forced shutdown runs before all waiting operations and preempts the running one. To follow
    /// the end of a guest, use [`MachineOp::AfterExit`] instead. It does nothing if another
    /// operation has already replaced the domain.
    pub fn run(
        self: &Arc<Self>,
        vm: VmId,
        op: MachineOp,
        op_hooks: OpHooks,
    ) -> BoxFuture<'static, Result<(), OpError>> {
        let (cancel, deadline) =
            (op_hooks.cancel.clone(), Instant::now() + self.settings.queue_deadline);
        let (reply_sender, mut reply_receiver) = oneshot::channel();
        let (machine, number) = self.enqueue(vm, (op, op_hooks), deadline, reply_sender);
        let leaves = move || machine.queue().withdraw(number).is_some();
        Box::pin(async move {
            tokio::select! {
                biased;
                outcome = &mut reply_receiver => return outcome.unwrap_or(Err(OpError::Cancelled)),
                () = sleep_until(deadline) => if leaves() { return Err(OpError::Busy) },
                () = cancel.cancelled() => if leaves() { return Err(OpError::Cancelled) },
            }
            reply_receiver.await.unwrap_or(Err(OpError::Cancelled))
        })
    }

    /// Queries the drivers for the existing state. Call once, before any [`Machines::run`]. The
    /// result includes domains whose machine is not recorded.
    pub fn discover(self: &Arc<Self>) -> BoxFuture<'static, Result<Vec<DomainInfo>, HvError>> {
        Box::pin(discover::learn(Arc::clone(self)))
    }

    /// Returns the last observed state of a machine's domain.
    pub fn domain(&self, vm: VmId) -> DomainState {
        let machine = self.lock().get(&vm).cloned();
        machine.map_or(DomainState::Absent, |machine| machine.observed().domain)
    }

    /// Locks the settings of a device, by its UUID, until the guard is dropped.
    ///
    /// A caller reads the settings under this lock and keeps it until they are applied. So older
    /// settings never replace newer ones. An attach takes the lock too.
    ///
    /// The guard contains the last applied settings, which another caller may have applied during
    /// the wait. Host NICs are devices here too: the lock serializes their plugs and unplugs.
    pub async fn lock_settings(&self, device: &str) -> OwnedMutexGuard<Option<AppliedSettings>> {
        self.settings_locks.of(device).await
    }

    /// Returns the number of holders and waiters of a device's settings lock.
    pub fn settings_waiters(&self, device: &str) -> usize {
        self.settings_locks.at(device)
    }

    /// Returns whether a machine uses the volume, or a call for it may still have an effect.
    pub fn volume_users(&self, vdi: VdiId) -> bool {
        self.volumes.is_used(vdi)
    }

    /// Locks a volume that no machine uses, for a caller that removes or changes it.
    ///
    /// Machines that need the volume wait until the lock is dropped. Returns `None` if
    /// [`Machines::volume_users`] is true.
    pub fn lock_volume(&self, vdi: VdiId) -> Option<VolumeLock<'_>> {
        let turn = self.volumes.alone(vdi);
        // Without a lock, the drop removes the entry that `alone` created.
        let taken = VolumeLock { machines: self, vdi, turn };
        taken.turn.is_some().then_some(taken)
    }

    /// Waits until no other call for this volume runs, and locks it. Machines may use it.
    pub async fn wait_for_volume(&self, vdi: VdiId) -> VolumeLock<'_> {
        let turn = Some(self.volumes.lock_storage_calls(vdi).await);
        VolumeLock { machines: self, vdi, turn }
    }

    /// Detaches volumes of an SR of type `kind` that are attached but used by no machine. A daemon
    /// may have ended between two calls.
    ///
    /// Call after [`Machines::discover`], when the SR is attached. Returns the number of detached
    /// volumes.
    pub fn detach_leftovers<'a>(
        &'a self,
        sr: SrId,
        kind: &'a str,
    ) -> BoxFuture<'a, Result<usize, SrError>> {
        Box::pin(leftovers::tidy(self, sr, kind))
    }

    /// Returns the first volume that a machine has attached, or may have attached.
    pub fn held_volume(&self, vm: VmId) -> Option<VdiId> {
        let machine = self.lock().get(&vm).cloned()?;
        let observed = machine.observed();
        observed.disks.values().next().map(|attached_volume| attached_volume.source.vdi)
    }

    /// Returns whether parts of a machine exist on the host, or a call for it may still have an
    /// effect.
    pub fn is_there(&self, vm: VmId) -> bool {
        let machine = self.lock().get(&vm).cloned();
        machine.is_some_and(|machine| !machine.observed().is_empty())
    }

    /// Notes that a guest's agent answers: its machine has booted.
    pub fn guest_ready(&self, vm: VmId) {
        self.boots.ready(vm);
    }

    /// Notes how long ago drivers first and last started a disk of a machine that has booted.
    pub fn driver_starts(&self, vm: VmId, ago: [Duration; 2]) {
        self.boots.drivers(vm, ago);
    }

    /// Returns where the time of a machine's present or last boot goes. `None` if it has not booted
    /// since this process started, or its domain has ended.
    pub fn boot_times(&self, vm: VmId) -> Option<BootTimes> {
        self.boots.times(vm)
    }

    /// Waits until boots of machines begin, go on or end, and returns these machines. Their
    /// [`Machines::boot_times`] have changed. One caller at a time.
    pub async fn boot_changes(&self) -> BTreeSet<VmId> {
        self.boots.changes().await
    }

    /// Changes the limits. Running steps continue.
    pub fn set_limits(&self, limits: StepLimits) {
        self.boots.set_places(limits.boots);
        self.executor.set_limits(limits);
    }

    /// Returns the slots in use, and the most that were in use.
    pub fn marks(&self) -> SlotUsage {
        self.executor.marks()
    }

    fn enqueue(
        self: &Arc<Self>,
        vm: VmId,
        what: (MachineOp, OpHooks),
        deadline: Instant,
        reply_sender: oneshot::Sender<Result<(), OpError>>,
    ) -> (Arc<Machine>, u64) {
        let mut all = self.lock();
        let machine = all.entry(vm).or_insert_with(|| Arc::new(Machine::new(vm)));
        let number = machine.queue().push(what, deadline, reply_sender);
        self.employ(machine);
        (Arc::clone(machine), number)
    }

    /// Requests a reconciliation after an abandoned storage call has ended.
    fn call_ended(self: &Arc<Self>, machine: &Arc<Machine>) {
        let all = self.lock();
        // A machine removed since then needs no reconciliation.
        if all.get(&machine.vm).is_some_and(|known| Arc::ptr_eq(known, machine)) {
            machine.queue().request_reconcile();
            self.employ(machine);
        }
    }

    /// Starts the machine's operation loop if it does not run. Does nothing if the runtime shuts
    /// down.
    fn employ(self: &Arc<Self>, machine: &Arc<Machine>) {
        let mut queue = machine.queue();
        if let (false, Ok(runtime)) = (queue.owned, tokio::runtime::Handle::try_current()) {
            queue.owned = true;
            runtime.spawn(op_loop::run_op_loop(Arc::clone(self), Arc::clone(machine)));
        }
    }

    /// Ends the machine's idle operation loop. Returns false if an operation has arrived since.
    fn retire(&self, machine: &Machine) -> bool {
        let mut all = self.lock();
        let mut queue = machine.queue();
        if !queue.is_idle() {
            return false;
        }
        queue.owned = false;
        if machine.observed().is_empty() {
            all.remove(&machine.vm);
        }
        true
    }

    /// Returns a domain id that was never used.
    fn fresh(&self) -> Domid {
        Domid(self.next_domid.fetch_add(1, Ordering::Relaxed))
    }

    /// Starts to note the addresses that a guest claims on an interface. A failure is only logged.
    async fn watch(&self, of: &VifRecord) {
        let VifRecord { vif, bridge, mac, limits, .. } = of;
        let own = drivers::own_addresses(limits);
        if let Err(error) = self.drivers.net.watch(*vif, bridge, mac, own).await {
            tracing::warn!(%vif, %error, "cannot observe the addresses of the interface");
        }
    }

    fn take_memory(&self, vm: VmId, needed: u64) -> Result<(), MemoryShortfall> {
        self.memory.take(self.drivers.memory.read(), vm, needed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VmId, Arc<Machine>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
