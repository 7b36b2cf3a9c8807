//! Who may run a step now: pure, no clock. Time comes in as what has passed since any one moment.
//!
//! # Words
//! - **Slot**: permission for a device step: one of the host, one of the machine, one of the lane.
//! - **Lane**: what hangs together: one SR, or the network. A lane that hangs costs others nothing
//!   that lasts.
//! - **Stuck**: a step that has run for [`StepLimits::stuck`]. It gives its host slot and its machine
//!   slot back and keeps the lane's, so hung storage blocks itself alone.
//! - **Begun**: a step that goes on with a chain of device steps, as an activate after its attach.
//! - **Hung**: a lane with a stuck step, from the moment on when a step of it has last ended.
//!
//! # Rules
//! 1. A lane runs at most [`StepLimits::sr`] steps; a machine and the host [`StepLimits::machine`] and
//!    [`StepLimits::host`] that are not stuck.
//! 2. A lane counts as alive once a step of it has ended in time, until one is stuck or nothing is
//!    left to do in it. Of the last [`StepLimits::reserve`] host slots, one that is not takes no more
//!    than makes half as many: the third to come finds room though two before it hang.
//! 3. In a lane with a stuck step a new one takes no host slot. Otherwise hung storage would take
//!    all of them again and again, for as long as each of its steps is young.
//! 4. Lanes take turns, and the machines of a lane. Begun steps go first in their lane, or the
//!    activates of 255 disks would stand behind 255 attaches.
//!
//! Nothing waits that could run. Whoever waits does so for a limit that is reached; only a machine
//! at its own limit can be passed over, by nobody but itself. So a step whose lane is not hung gets
//! its turn, however many wait; one whose lane is may never get it ([`Admission::hung_since`]).

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

/// One step in the eyes of its executor, which never uses a key twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepKey(pub u64);

/// What a step must hold while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// Nothing: it may run at once.
    None,
    /// Of the host, of its machine and of this SR.
    Device {
        /// Where the disk is.
        sr: SrId,
    },
    /// Of the host, of its machine and of the network.
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

/// What hangs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultDomain {
    /// One SR.
    Sr(SrId),
    /// The host's bridges and TAPs.
    Network,
}

/// What is held, and what was held at most since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotUsage {
    /// Host slots held now.
    pub host: u16,
    /// Most host slots held at once.
    pub host_high: u16,
    /// Most slots that one machine held at once.
    pub machine_high: u16,
    /// Most steps that one lane ran at once.
    pub lane_high: u16,
    /// Lanes in use.
    pub lanes: BTreeMap<FaultDomain, LaneMarks>,
}

/// What one lane does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneMarks {
    /// Steps that run, the stuck ones too.
    pub running: u16,
    /// Steps that are stuck.
    pub stuck: u16,
    /// Steps that wait.
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

/// Holds every slot of a host. See the [module](self) for its rules.
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
    /// Steps that are not stuck yet, the oldest first.
    young: BTreeSet<(Duration, StepKey)>,
    host_high: u16,
    machine_high: u16,
    lane_high: u16,
}

impl Admission {
    /// Nobody runs, nobody waits.
    pub fn new(limits: StepLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Changes the limits. Steps that run go on; what waits is judged by the new ones.
    pub fn set(&mut self, limits: StepLimits) {
        self.limits = limits;
    }

    /// A step could run. `begun`: it goes on with a chain of device steps that has begun.
    pub fn ready(&mut self, key: StepKey, vm: VmId, slots: Slots, begun: bool) {
        let Some(fault_domain) = slots.lane() else { return self.free.push_back(key) };
        self.lanes.entry(fault_domain).or_default().push(vm, key, begun);
        self.waiting.insert(key, Waiting { vm, fault_domain, begun });
    }

    /// A step is over, whether it ran or was cancelled or too late while it waited. A key that is
    /// not known holds nothing, so nothing follows.
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

    /// All that may begin now, in this order. They hold their slots from here on.
    pub fn next(&mut self, now: Duration) -> Vec<StepKey> {
        self.find_stuck(now);
        let mut begin: Vec<StepKey> = self.free.drain(..).collect();
        while let Some(key) = self.begin_one(now) {
            begin.push(key);
        }
        begin
    }

    /// When the next step becomes stuck unless it ends before: time to ask again.
    pub fn wake_at(&self) -> Option<Duration> {
        let (since, _) = self.young.first()?;
        Some(since.saturating_add(self.limits.stuck))
    }

    /// Since when nothing has ended in the lane of a step that runs or waits, if a step is stuck
    /// there. Nothing of a lane that is merely busy: whoever waits there has its turn to come.
    pub fn hung_since(&self, key: StepKey) -> Option<Duration> {
        let waiting = self.waiting.get(&key).map(|step| step.fault_domain);
        let fault_domain =
            waiting.or_else(|| self.running.get(&key).map(|step| step.fault_domain))?;
        self.lanes.get(&fault_domain).filter(|queue| queue.stuck > 0).map(|queue| queue.moved)
    }

    /// What is held, and what was held at most.
    pub fn marks(&self) -> SlotUsage {
        let lane = |(fault_domain, queue): (&FaultDomain, &Queue)| {
            let Queue { running, stuck, waiting, .. } = *queue;
            (*fault_domain, LaneMarks { running, stuck, waiting })
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

    /// Whether a step of this lane may begin, its machine aside.
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

    /// Gives back what only a step that is not stuck holds. False where one was stuck.
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
