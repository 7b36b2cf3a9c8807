//! Phases of the steps of a plan.

use model::admission::StepKey;
use model::plan::{Cancel, Effect, Plan, Step, StepAction, StepId};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Phase of a step.
#[derive(Debug)]
pub(super) enum StepPhase {
    /// Earlier steps have not ended yet.
    Waits,
    /// The step waits for slots.
    Ready {
        key: StepKey,
        /// Time at which the step became ready.
        since: Instant,
        /// Time of the next check whether the lane hangs.
        deadline: Instant,
    },
    /// The call of the step runs.
    Runs {
        task: AbortHandle,
        deadline: Instant,
    },
    Ended,
    Failed,
    /// The step is skipped: an earlier step failed, or the plan cannot reach its goal any more.
    LeftOut,
}

/// Steps of a plan that is executed.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) plan: Plan,
    step_phase: Vec<StepPhase>,
    weight: u32,
    ended: u32,
    /// Effects of ended steps that are not recorded yet.
    effects: Vec<Effect>,
    /// True if no more cancellable steps begin.
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

    /// Returns whether no step runs and none can begin.
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

    /// Marks a step as failed. Steps that cannot reach the goal without it do not begin.
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

    /// Returns whether a cancel would skip a step.
    pub(super) fn can_be_cut(&self) -> bool {
        self.step_phase.iter().zip(self.plan.steps()).any(|(step_phase, step)| match step_phase {
            StepPhase::Waits | StepPhase::Ready { .. } => step.cancel == Cancel::Before,
            StepPhase::Runs { .. } => waits_for_guest(step),
            StepPhase::Ended | StepPhase::Failed | StepPhase::LeftOut => false,
        })
    }

    /// Returns the completed share, 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        if self.weight == 0 { 1.0 } else { f64::from(self.ended) / f64::from(self.weight) }
    }

    /// Returns the next deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadline = |step_phase: &StepPhase| match step_phase {
            StepPhase::Ready { deadline, .. } | StepPhase::Runs { deadline, .. } => Some(*deadline),
            _ => None,
        };
        self.step_phase.iter().filter_map(deadline).min()
    }

    /// Returns the steps whose deadline has passed.
    pub(super) fn late(&self, now: Instant) -> Vec<usize> {
        let late = |step_phase: &StepPhase| match step_phase {
            StepPhase::Ready { deadline, .. } | StepPhase::Runs { deadline, .. } => {
                *deadline <= now
            }
            _ => false,
        };
        self.which(late)
    }

    /// Returns the steps in a phase for which `is` returns true.
    pub(super) fn which(&self, is: impl Fn(&StepPhase) -> bool) -> Vec<usize> {
        self.step_phase
            .iter()
            .enumerate()
            .filter(|(_, step_phase)| is(step_phase))
            .map(|(at, _)| at)
            .collect()
    }

    /// Returns the steps that can begin now. Ends steps that only have effects, and skips steps
    /// that can never begin. One pass is enough, because edges lead to earlier steps.
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

/// Returns whether a step waits for the guest. The guest decides how long that takes, so a cancel
/// ends the step even while it runs.
pub(super) fn waits_for_guest(step: &Step) -> bool {
    use StepAction::{DomainAsk, DomainAwaitEnd, TakeBootPlace};
    matches!(step.verb, DomainAsk(_) | DomainAwaitEnd | TakeBootPlace)
}
