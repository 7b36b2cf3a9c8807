//! Simulator that runs plans of several machines through admission in virtual time: an executor
//! without threads and without a clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::*;
use crate::admission::{Admission, SlotUsage, StepKey, StepLimits};
use crate::id::VmId;

/// Duration of one hypervisor command; commands run one after the other.
pub(super) const COMMAND: Duration = Duration::from_millis(5);

/// A host in virtual time.
pub(super) struct Sim<F> {
    admission: Admission,
    now: Duration,
    jobs: Vec<Job>,
    events: BinaryHeap<Reverse<(Duration, usize, Event)>>,
    takes: F,
}

struct Job {
    vm: VmId,
    plan: Plan,
    /// Whether each step has ended, by index.
    ended: Vec<bool>,
    ready: Vec<bool>,
    commands_until: Duration,
    finished: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Comes,
    Ended(usize),
}

impl<F: Fn(&Step) -> Option<Duration>> Sim<F> {
    /// Creates a host. `takes` returns the duration of a step; `None` means forever.
    pub(super) fn new(limits: StepLimits, takes: F) -> Self {
        let (jobs, events) = (Vec::new(), BinaryHeap::new());
        let (admission, now) = (Admission::new(limits), Duration::ZERO);
        Self { admission, now, jobs, events, takes }
    }

    /// Adds a plan that is requested at this time, and returns its number.
    pub(super) fn ask(&mut self, at: Duration, plan: Plan) -> usize {
        let number = self.jobs.len();
        let vm = VmId(uuid(9, u8::try_from(number).unwrap()));
        let none = vec![false; plan.steps().len()];
        let (ended, ready) = (none.clone(), none);
        let (commands_until, finished) = (Duration::ZERO, None);
        self.jobs.push(Job { vm, plan, ended, ready, commands_until, finished });
        self.events.push(Reverse((at, number, Event::Comes)));
        number
    }

    /// Runs until nothing more happens. Returns when each plan ended, except for hung ones.
    pub(super) fn run(&mut self) -> (BTreeMap<usize, Duration>, SlotUsage) {
        loop {
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let Some(at) = event.into_iter().chain(self.admission.wake_at()).min() else { break };
            self.now = at;
            while let Some(Reverse((at, number, event))) = self.events.peek().copied()
                && at <= self.now
            {
                self.events.pop();
                self.happens(number, event);
            }
            for StepKey(key) in self.admission.next(self.now) {
                self.begin(key);
            }
        }
        let ends = self.jobs.iter().enumerate();
        let ends = ends.filter_map(|(number, job)| job.finished.map(|at| (number, at))).collect();
        (ends, self.admission.marks())
    }

    fn happens(&mut self, number: usize, event: Event) {
        let job = &mut self.jobs[number];
        if let Event::Ended(at) = event {
            job.ended[at] = true;
            self.admission.done(key(number, at), self.now);
        }
        if job.ended.iter().all(|ended| *ended) {
            job.finished = Some(self.now);
        }
        for (at, step) in job.plan.steps().iter().enumerate() {
            if !job.ready[at] && step.after.iter().all(|id| job.ended[id.index()]) {
                job.ready[at] = true;
                self.admission.ready(key(number, at), job.vm, step.slots, step.begun);
            }
        }
    }

    fn begin(&mut self, key: u64) {
        let (number, at) = (usize::try_from(key >> 32).unwrap(), (key & 0xffff_ffff) as usize);
        let job = &mut self.jobs[number];
        let step = &job.plan.steps()[at];
        let Some(takes) = (self.takes)(step) else { return };
        let command = matches!(
            step.verb,
            StepAction::VbdPlug(_)
                | StepAction::VbdInsert(_)
                | StepAction::VifPlug(_)
                | StepAction::DomainRun
        );
        let mut ends = self.now + takes;
        if command {
            ends = ends.max(job.commands_until + takes);
            job.commands_until = ends;
        }
        self.events.push(Reverse((ends, number, Event::Ended(at))));
    }
}

fn key(number: usize, at: usize) -> StepKey {
    StepKey((number as u64) << 32 | at as u64)
}
