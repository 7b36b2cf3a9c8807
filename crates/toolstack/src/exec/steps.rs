//! Where each step of a plan is.

use model::admission::StepKey;
use model::plan::{Cancel, Effect, Plan, Step, StepAction, StepId};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Where a step is.
#[derive(Debug)]
pub(super) enum StepPhase {
    /// Others must end before it.
    Waits,
    /// It waits for slots.
    Ready {
        key: StepKey,
        /// Since when.
        since: Instant,
        /// When it is looked at whether it waits for what hangs.
        deadline: Instant,
    },
    /// Its call runs.
    Runs {
        task: AbortHandle,
        deadline: Instant,
    },
    Ended,
    Failed,
    /// It is not done: something before it failed, or the plan does not reach its goal any more.
    LeftOut,
}

/// The steps of a plan that is carried out.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) plan: Plan,
    step_phase: Vec<StepPhase>,
    weight: u32,
    ended: u32,
    /// Effects of what has ended, which nobody was told yet.
    effects: Vec<Effect>,
    /// Nothing that could be cancelled is begun any more.
    pub(super) closing: bool,
}

impl Steps {
    pub(super) fn new(plan: Plan) -> Self {
        let step_phase = plan.steps().iter().map(|_| StepPhase::Waits).collect();
        let weight = plan.weight();
        Self { plan, step_phase, weight, ended: 0, effects: Vec::new(), closing: false }
    }

    pub(super) fn step(&self, at: usize) -> Option<&Step> {
        self.plan.steps().get(at)
    }

    pub(super) fn at(&self, at: usize) -> Option<&StepPhase> {
        self.step_phase.get(at)
    }

    pub(super) fn set(&mut self, at: usize, now: StepPhase) {
        if let Some(place) = self.step_phase.get_mut(at) {
            *place = now;
        }
    }

    /// Whether nothing runs and nothing can begin.
    pub(super) fn are_over(&self) -> bool {
        !self.step_phase.iter().any(|step_phase| {
            matches!(
                step_phase,
                StepPhase::Waits | StepPhase::Ready { .. } | StepPhase::Runs { .. }
            )
        })
    }

    pub(super) fn ended(&mut self, at: usize) {
        self.set(at, StepPhase::Ended);
        if let Some(step) = self.plan.steps().get(at) {
            self.ended = self.ended.saturating_add(step.weight);
            self.effects.extend_from_slice(&step.then);
        }
    }

    /// What could not reach its goal without this step is not begun.
    pub(super) fn failed(&mut self, at: usize) {
        self.set(at, StepPhase::Failed);
        self.closing = true;
        if let Some(step) = self.plan.steps().get(at) {
            self.effects.extend_from_slice(&step.if_failed);
        }
    }

    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether a cancel would leave something out.
    pub(super) fn can_be_cut(&self) -> bool {
        self.step_phase.iter().zip(self.plan.steps()).any(|(step_phase, step)| match step_phase {
            StepPhase::Waits | StepPhase::Ready { .. } => step.cancel == Cancel::Before,
            StepPhase::Runs { .. } => waits_for_guest(step),
            StepPhase::Ended | StepPhase::Failed | StepPhase::LeftOut => false,
        })
    }

    /// How much is done, 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        if self.weight == 0 { 1.0 } else { f64::from(self.ended) / f64::from(self.weight) }
    }

    /// The next deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadline = |step_phase: &StepPhase| match step_phase {
            StepPhase::Ready { deadline, .. } | StepPhase::Runs { deadline, .. } => Some(*deadline),
            _ => None,
        };
        self.step_phase.iter().filter_map(deadline).min()
    }

    /// Steps whose deadline has passed.
    pub(super) fn late(&self, now: Instant) -> Vec<usize> {
        let late = |step_phase: &StepPhase| match step_phase {
            StepPhase::Ready { deadline, .. } | StepPhase::Runs { deadline, .. } => {
                *deadline <= now
            }
            _ => false,
        };
        self.which(late)
    }

    /// Steps that are at such a place.
    pub(super) fn which(&self, is: impl Fn(&StepPhase) -> bool) -> Vec<usize> {
        self.step_phase
            .iter()
            .enumerate()
            .filter(|(_, step_phase)| is(step_phase))
            .map(|(at, _)| at)
            .collect()
    }

    /// Steps that can begin now. Those that are nothing but effects end here; those that never
    /// can are left out. One pass is enough, because edges lead to earlier steps.
    pub(super) fn begin(&mut self) -> Vec<usize> {
        let mut begin = Vec::new();
        for at in self.which(|step_phase| matches!(step_phase, StepPhase::Waits)) {
            let Some(step) = self.plan.steps().get(at) else { continue };
            let before = |id: &StepId| self.step_phase.get(id.index());
            let never =
                |id: &StepId| matches!(before(id), Some(StepPhase::Failed | StepPhase::LeftOut));
            let closed = self.closing && step.cancel == Cancel::Before;
            if closed || step.after.iter().any(never) {
                self.set(at, StepPhase::LeftOut);
            } else if step.after.iter().all(|id| matches!(before(id), Some(StepPhase::Ended))) {
                match step.verb {
                    StepAction::Record => self.ended(at),
                    _ => begin.push(at),
                }
            }
        }
        begin
    }
}

/// Whether a step is a wait for the guest, which may take as long as the guest likes: a cancel ends
/// it though it runs.
pub(super) fn waits_for_guest(step: &Step) -> bool {
    matches!(step.verb, StepAction::DomainAsk(_) | StepAction::DomainAwaitEnd)
}
