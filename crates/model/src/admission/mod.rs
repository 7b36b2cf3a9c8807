//! Decides which device step may run now: pure, no clock. The caller passes the time elapsed since
//! a fixed moment.
//!
//! # Terms
//! - **Slot**: permission for a device step. A step takes a host slot, a machine slot and a slot of
//!   its fault domain.
//! - **Fault domain**: one SR, or the network. If it hangs, it delays other fault domains only
//!   briefly.
//! - **Stuck**: a step that has run for [`StepLimits::stuck`]. It returns its host and machine
//!   slots and keeps the one of its fault domain. So hung storage blocks only itself.
//! - **Begun**: a step that continues a chain of device steps, such as an activate after its
//!   attach.
//! - **Hung**: a fault domain with a stuck step. It counts as hung since one of its steps last
//!   ended.
//!
//! # Rules
//! 1. A fault domain runs at most [`StepLimits::sr`] steps. Steps that are not stuck are limited to
//!    [`StepLimits::machine`] per machine and [`StepLimits::host`] per host.
//! 2. A fault domain is alive from the first step that ends in time until a step is stuck or it has
//!    no more steps. [`StepLimits::reserve`] host slots are reserved. A fault domain that is not
//!    alive takes a reserved slot only while it uses fewer host slots than half that number. So a
//!    third fault domain finds free slots although two others hang.
//! 3. A new step of a fault domain with a stuck step takes no host slot. Otherwise hung storage
//!    would take all host slots repeatedly, while each of its steps is young.
//! 4. Fault domains take turns, and so do the machines within one. Begun steps go first within
//!    their fault domain. Otherwise the activates of 255 disks would wait behind 255 attaches.
//!
//! Every step that may run does run. A step waits only for a limit that is reached. A machine at
//! its own limit is skipped, and delays only itself. So a step always gets its turn unless its
//! fault domain hangs. In a hung fault domain a step may wait forever ([`Admission::hung_since`]).

mod limits;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::id::{SrId, VmId};
pub use limits::{
    DEFAULT_HOST, DEFAULT_MACHINE, DEFAULT_RESERVE, DEFAULT_SR, DEFAULT_STUCK, MAX_STEPS,
    MAX_STUCK, MIN_STUCK, StepLimits,
};
use queue::{Queue, in_turn};

/// Key of one step. The executor never uses a key twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepKey(pub u64);

/// Slots that a step needs while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// No slots: the step may run at once.
    None,
    /// Slots of the host, of the machine and of this SR.
    Device {
        /// SR of the disk.
        sr: SrId,
    },
    /// Slots of the host, of the machine and of the network.
    Network,
}

impl Slots {
    fn lane(self) -> Option<FaultDomain> {
        match self {
            Self::None => None,
            Self::Device { sr } => Some(FaultDomain::Sr(sr)),
            Self::Network => Some(FaultDomain::Network),
        }
    }
}

/// Resource whose steps hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultDomain {
    /// A storage repository.
    Sr(SrId),
    /// The host's bridges and TAPs.
    Network,
}

/// Slots in use now, and the maxima since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotUsage {
    /// Host slots in use now.
    pub host: u16,
    /// Most host slots in use at once.
    pub host_high: u16,
    /// Most slots that one machine used at once.
    pub machine_high: u16,
    /// Most steps that one fault domain ran at once.
    pub lane_high: u16,
    /// Fault domains in use.
    pub lanes: BTreeMap<FaultDomain, FaultDomainUsage>,
}

/// Current steps of one fault domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultDomainUsage {
    /// Running steps, including stuck ones.
    pub running: u16,
    /// Stuck steps.
    pub stuck: u16,
    /// Waiting steps.
    pub waiting: usize,
}

#[derive(Debug)]
struct Waiting {
    vm: VmId,
    fault_domain: FaultDomain,
    begun: bool,
}

#[derive(Debug)]
struct Running {
    vm: VmId,
    fault_domain: FaultDomain,
    since: Duration,
    host: bool,
}

/// Slots of a host. See the [module](self) for the rules.
#[derive(Debug, Default)]
pub struct Admission {
    limits: StepLimits,
    host: u16,
    machines: HashMap<VmId, u16>,
    lanes: BTreeMap<FaultDomain, Queue>,
    last: Option<FaultDomain>,
    free: VecDeque<StepKey>,
    waiting: HashMap<StepKey, Waiting>,
    running: HashMap<StepKey, Running>,
    /// Running steps that are not stuck, oldest first.
    young: BTreeSet<(Duration, StepKey)>,
    host_high: u16,
    machine_high: u16,
    lane_high: u16,
}

impl Admission {
    /// Creates an admission without any steps.
    pub fn new(limits: StepLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Changes the limits. Running steps continue; the new limits apply to waiting steps.
    pub fn set(&mut self, limits: StepLimits) {
        self.limits = limits;
    }

    /// Adds a step that is ready to run. `begun`: it continues a chain of device steps.
    pub fn ready(&mut self, key: StepKey, vm: VmId, slots: Slots, begun: bool) {
        let Some(fault_domain) = slots.lane() else { return self.free.push_back(key) };
        self.lanes.entry(fault_domain).or_default().push(vm, key, begun);
        self.waiting.insert(key, Waiting { vm, fault_domain, begun });
    }

    /// Removes a step that has ended, or that was cancelled or too late while it waited. An
    /// unknown key has no effect.
    pub fn done(&mut self, key: StepKey, now: Duration) {
        self.free.retain(|one| *one != key);
        if let Some(Waiting { vm, fault_domain, begun }) = self.waiting.remove(&key) {
            if let Some(queue) = self.lanes.get_mut(&fault_domain) {
                queue.remove(vm, key, begun);
            }
            self.drop_if_idle(fault_domain);
        }
        if let Some(mut step) = self.running.remove(&key) {
            let in_time = self.give_back(key, &mut step);
            if let Some(queue) = self.lanes.get_mut(&step.fault_domain) {
                queue.alive |= in_time;
                queue.moved = now;
                queue.running = queue.running.saturating_sub(1);
                queue.stuck = queue.stuck.saturating_sub(u16::from(!in_time));
            }
            self.drop_if_idle(step.fault_domain);
        }
    }

    /// Returns all steps that may begin now, in order. They use their slots from now on.
    pub fn next(&mut self, now: Duration) -> Vec<StepKey> {
        self.find_stuck(now);
        let mut begin: Vec<StepKey> = self.free.drain(..).collect();
        while let Some(key) = self.begin_one(now) {
            begin.push(key);
        }
        begin
    }

    /// Returns when the next running step becomes stuck. Call [`Self::next`] then.
    pub fn wake_at(&self) -> Option<Duration> {
        let (since, _) = self.young.first()?;
        Some(since.saturating_add(self.limits.stuck))
    }

    /// Returns since when no step has ended in the fault domain of a running or waiting step, if
    /// that has a stuck step. `None` for a fault domain that is only busy: its steps get their
    /// turn.
    pub fn hung_since(&self, key: StepKey) -> Option<Duration> {
        let waiting = self.waiting.get(&key).map(|step| step.fault_domain);
        let fault_domain =
            waiting.or_else(|| self.running.get(&key).map(|step| step.fault_domain))?;
        self.lanes.get(&fault_domain).filter(|queue| queue.stuck > 0).map(|queue| queue.moved)
    }

    /// Returns the slots in use and their maxima.
    pub fn marks(&self) -> SlotUsage {
        let lane = |(fault_domain, queue): (&FaultDomain, &Queue)| {
            let Queue { running, stuck, waiting, .. } = *queue;
            (*fault_domain, FaultDomainUsage { running, stuck, waiting })
        };
        SlotUsage {
            host: self.host,
            host_high: self.host_high,
            machine_high: self.machine_high,
            lane_high: self.lane_high,
            lanes: self.lanes.iter().map(lane).collect(),
        }
    }

    fn begin_one(&mut self, now: Duration) -> Option<StepKey> {
        let room = |vm| self.machines.get(&vm).is_none_or(|held| *held < self.limits.machine);
        let (fault_domain, vm, begun) = in_turn(&self.lanes, self.last)
            .filter(|(_, queue)| self.has_room(queue))
            .find_map(|(fault_domain, queue)| {
                queue.first(room).map(|(vm, begun)| (*fault_domain, vm, begun))
            })?;
        let queue = self.lanes.get_mut(&fault_domain)?;
        let key = queue.take(vm, begun)?;
        let host = queue.stuck == 0;
        queue.running += 1;
        queue.host += u16::from(host);
        self.host += u16::from(host);
        let held = self.machines.entry(vm).or_default();
        *held += 1;
        self.host_high = self.host_high.max(self.host);
        self.machine_high = self.machine_high.max(*held);
        self.lane_high = self.lane_high.max(queue.running);
        self.last = Some(fault_domain);
        self.waiting.remove(&key);
        self.young.insert((now, key));
        self.running.insert(key, Running { vm, fault_domain, since: now, host });
        Some(key)
    }

    /// Returns whether a step of this fault domain may begin, apart from its machine's limit.
    fn has_room(&self, queue: &Queue) -> bool {
        if queue.running >= self.limits.sr {
            return false;
        }
        let free = self.limits.host.saturating_sub(self.host);
        let reserve = queue.alive || queue.host < self.limits.share();
        queue.stuck > 0 || free > self.limits.kept() || (free > 0 && reserve)
    }

    fn find_stuck(&mut self, now: Duration) {
        while let Some(&(since, key)) = self.young.first() {
            if now.saturating_sub(since) < self.limits.stuck {
                return;
            }
            let Some(mut step) = self.running.remove(&key) else { return };
            self.give_back(key, &mut step);
            if let Some(queue) = self.lanes.get_mut(&step.fault_domain) {
                queue.stuck += 1;
                queue.alive = false;
            }
            self.running.insert(key, step);
        }
    }

    /// Returns the host and machine slots of a step. False if the step was stuck.
    fn give_back(&mut self, key: StepKey, step: &mut Running) -> bool {
        if !self.young.remove(&(step.since, key)) {
            return false;
        }
        if let Some(held) = self.machines.get_mut(&step.vm) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.machines.remove(&step.vm);
            }
        }
        if std::mem::take(&mut step.host) {
            self.host = self.host.saturating_sub(1);
            if let Some(queue) = self.lanes.get_mut(&step.fault_domain) {
                queue.host = queue.host.saturating_sub(1);
            }
        }
        true
    }

    fn drop_if_idle(&mut self, fault_domain: FaultDomain) {
        if self.lanes.get(&fault_domain).is_some_and(Queue::is_idle) {
            self.lanes.remove(&fault_domain);
        }
    }
}
