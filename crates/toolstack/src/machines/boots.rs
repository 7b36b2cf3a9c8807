//! Places of machines that boot, and where the time of each boot goes.
//!
//! [`BootPace`] decides who boots. This module lets starts wait for it. While machines wait, a task
//! looks for idle CPUs, which no event announces.

mod cpus;
#[cfg(test)]
mod tests;
mod times;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use model::boot_pace::BootPace;
use model::id::VmId;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

pub use cpus::{CpuTime, HostCpus, ProcStat};
use times::Boot;
pub use times::{BootStage, BootTimes};

/// Time between two looks for idle CPUs while machines wait.
const LOOK: Duration = Duration::from_millis(250);
/// Idle part of the host's CPU time, in percent, from which another machine may boot.
const IDLE_PERCENT: u64 = 20;

/// Boots of a host's machines.
#[derive(Debug)]
pub(super) struct Boots {
    inner: Mutex<Inner>,
    /// `None` if guests take no time of the host: then none waits.
    cpus: Option<Arc<dyn HostCpus>>,
    epoch: Instant,
    /// Wakes the follower of [`Inner::changed`].
    changes: Notify,
}

#[derive(Debug)]
struct Inner {
    pace: BootPace,
    admitted: HashMap<VmId, oneshot::Sender<()>>,
    boots: HashMap<VmId, Boot>,
    /// Machines whose boot began, went on or ended since the follower looked.
    changed: BTreeSet<VmId>,
    cpu_time: CpuTime,
    /// Whether a task looks for idle CPUs.
    is_watched: bool,
}

impl Boots {
    pub(super) fn new(places: u16, cpus: Option<Arc<dyn HostCpus>>) -> Arc<Self> {
        let inner = Inner {
            pace: BootPace::new(places),
            admitted: HashMap::new(),
            boots: HashMap::new(),
            changed: BTreeSet::new(),
            cpu_time: CpuTime::default(),
            is_watched: false,
        };
        let (inner, changes) = (Mutex::new(inner), Notify::new());
        Arc::new(Self { inner, cpus, epoch: Instant::now(), changes })
    }

    pub(super) fn set_places(&self, places: u16) {
        let mut inner = self.lock();
        inner.pace.set_places(places);
        inner.admit(self.epoch.elapsed(), false);
    }

    /// Waits for a machine's place. The wait ends when the future is dropped.
    pub(super) async fn take_place(self: &Arc<Self>, vm: VmId) {
        self.lock().boots.insert(vm, Boot::new(None));
        if self.cpus.is_some() {
            let (sender, mut receiver) = oneshot::channel();
            let waiter = Waiter { boots: self, vm };
            self.wait(vm, sender);
            // A place that is free makes no wait that is worth a record.
            if receiver.try_recv() == Err(TryRecvError::Empty) {
                self.note(vm);
                // The sender goes only when the machine asks again: this wait is over then.
                let _ = receiver.await;
            }
            std::mem::forget(waiter);
        }
        self.advance(vm, |boot| {
            boot.admitted.get_or_insert_with(Instant::now);
        });
    }

    /// Notes that a machine's domain is created. The boot begins now if it took no place, as after a
    /// reboot.
    pub(super) fn created(&self, vm: VmId) {
        let mut inner = self.lock();
        if inner.boots.get(&vm).is_none_or(|boot| boot.running.is_some()) {
            inner.boots.insert(vm, Boot::new(Some(Instant::now())));
            drop(inner);
            self.note(vm);
        }
    }

    fn wait(self: &Arc<Self>, vm: VmId, sender: oneshot::Sender<()>) {
        let mut inner = self.lock();
        inner.pace.wait(vm);
        inner.admitted.insert(vm, sender);
        inner.admit(self.epoch.elapsed(), false);
        if inner.pace.waiting() > 0 && !inner.is_watched {
            inner.is_watched = true;
            inner.cpu_time = self.cpu_time();
            tokio::spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Notes that a machine's CPUs run.
    pub(super) fn running(&self, vm: VmId) {
        self.advance(vm, |boot| {
            boot.running.get_or_insert_with(Instant::now);
        });
    }

    /// Notes that a guest's agent answers: the machine gives its place back.
    pub(super) fn ready(&self, vm: VmId) {
        self.advance(vm, |boot| {
            if boot.running.is_some() {
                boot.ready.get_or_insert_with(Instant::now);
            }
        });
        self.lock().pace.ready(vm, self.epoch.elapsed());
        self.leave(vm);
    }

    /// Notes how long ago drivers first and last started a disk of a machine. Only the first note of a
    /// boot counts: an agent may start again, and drivers with it.
    pub(super) fn drivers(&self, vm: VmId, ago: [Duration; 2]) {
        let now = Instant::now();
        self.advance(vm, |boot| {
            let earliest = boot.admitted.unwrap_or(boot.asked);
            let at = || ago.map(|ago| now.checked_sub(ago).unwrap_or(earliest));
            boot.drivers.get_or_insert_with(at);
        });
    }

    /// Takes back the place of a machine that boots no longer.
    pub(super) fn leave(&self, vm: VmId) {
        let mut inner = self.lock();
        inner.pace.leave(vm);
        inner.admitted.remove(&vm);
        inner.admit(self.epoch.elapsed(), false);
    }

    /// Ends the boot of a machine after an operation that failed or was cancelled. A guest that runs
    /// boots on.
    pub(super) fn failed(&self, vm: VmId) {
        let runs = self.lock().boots.get(&vm).is_some_and(|boot| boot.running.is_some());
        if runs { self.leave(vm) } else { self.ended(vm) }
    }

    /// Forgets a machine without a living domain.
    pub(super) fn ended(&self, vm: VmId) {
        if self.lock().boots.remove(&vm).is_some() {
            self.note(vm);
        }
        self.leave(vm);
    }

    /// Returns where the time of a machine's boot goes. `None` if it has not begun since this daemon
    /// started, or its domain has ended.
    pub(super) fn times(&self, vm: VmId) -> Option<BootTimes> {
        self.lock().boots.get(&vm).map(|boot| boot.times(Instant::now()))
    }

    /// Waits until boots of machines begin, go on or end, and returns these machines. One caller at a
    /// time.
    pub(super) async fn changes(&self) -> BTreeSet<VmId> {
        loop {
            let changed = std::mem::take(&mut self.lock().changed);
            if !changed.is_empty() {
                return changed;
            }
            self.changes.notified().await;
        }
    }

    /// Changes the boot of a machine, if there is one.
    fn advance(&self, vm: VmId, change: impl FnOnce(&mut Boot)) {
        let mut inner = self.lock();
        let Some(boot) = inner.boots.get_mut(&vm) else { return };
        change(boot);
        inner.changed.insert(vm);
        self.changes.notify_one();
    }

    fn note(&self, vm: VmId) {
        self.lock().changed.insert(vm);
        self.changes.notify_one();
    }

    fn cpu_time(&self) -> CpuTime {
        self.cpus.as_ref().map(|cpus| cpus.read()).unwrap_or_default()
    }

    /// Admits machines if the host has idle CPUs. Returns whether others still wait.
    fn look(&self) -> bool {
        let now = self.cpu_time();
        let mut inner = self.lock();
        let before = std::mem::replace(&mut inner.cpu_time, now);
        let total = now.total.saturating_sub(before.total);
        let idle = now.idle.saturating_sub(before.idle);
        inner.admit(self.epoch.elapsed(), total > 0 && idle * 100 >= total * IDLE_PERCENT);
        inner.is_watched = inner.pace.waiting() > 0;
        inner.is_watched
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is complete before it can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn admit(&mut self, now: Duration, has_idle_cpus: bool) {
        let mut next = self.pace.admit(now, has_idle_cpus);
        while let Some(vm) = next {
            // A waiter that was dropped leaves.
            self.admitted.remove(&vm).map(|sender| sender.send(()));
            next = self.pace.admit(now, false);
        }
    }
}

/// Wait for a place.
struct Waiter<'a> {
    boots: &'a Boots,
    vm: VmId,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.boots.ended(self.vm);
    }
}

async fn watch(boots: Weak<Boots>) {
    loop {
        sleep(LOOK).await;
        if !boots.upgrade().is_some_and(|boots| boots.look()) {
            return;
        }
    }
}
