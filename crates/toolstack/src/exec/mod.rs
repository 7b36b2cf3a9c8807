//! Execution of plans: a step begins when the steps before it have ended and a slot is free.
//!
//! # Model
//! One [`Executor`] has the slots of a host. [`Executor::run`] executes one plan, and several plans
//! run in parallel. Each step is its own task, which calls [`StepRunner`]. Nothing is polled: a run
//! wakes when a step ends, at a deadline and at a cancellation. The slots are checked when one
//! becomes free and when a step becomes stuck.
//!
//! # How a step ends before its call does
//! - Its **deadline** runs from the start of its call. The wait for a slot does not count while
//!   other steps of the lane progress, so every disk of a healthy SR can be attached. While a lane
//!   [hangs](model::admission::Admission::hung_since), the wait counts. So a step that never gets a
//!   slot of a hung lane still fails in time.
//! - A call that must not be dropped is **abandoned**: the step has failed, but the call continues.
//!   It occupies its slots as a stuck call until it ends. So hung storage never gets more calls
//!   than its slots.
//! - A **cancel** skips steps that have not begun. Running steps continue to their end, except
//!   waits for the guest.
//! - A **preempted** plan gives its running steps [`PREEMPT_GRACE`] to end, and then abandons
//!   them.

mod cancel;
mod run;
mod slots;
mod steps;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model::admission::{SlotUsage, StepLimits};
use model::plan::{Effect, StepAction};

pub(crate) use cancel::CancelLevel;
pub use cancel::CancelToken;
pub use run::PlanOutcome;
use slots::Slots;

use crate::boxed_future::BoxFuture;

/// Longest time that steps of a preempted plan may still run. On a healthy host a step takes less,
/// so only hung steps are abandoned.
pub const PREEMPT_GRACE: Duration = Duration::from_secs(1);

/// Error of a step that did not end before its deadline.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("did not end within {} s", .after.as_secs())]
pub struct StepTimeout {
    /// Time waited.
    pub after: Duration,
}

/// Error of a step, of any runner.
pub trait StepFailure: From<StepTimeout> + Debug + Send + 'static {}

impl<E: From<StepTimeout> + Debug + Send + 'static> StepFailure for E {}

/// Runner for the steps of one plan.
pub trait StepRunner: Send + Sync + 'static {
    /// Error of a step.
    type Error: StepFailure;
    /// Executes one step by a driver call.
    fn run_step(&self, verb: StepAction) -> BoxFuture<'_, Result<(), Self::Error>>;
    /// Ends the wait for this step. Returns true if its call must continue to its end, false if the
    /// call may be dropped.
    fn abandon_step(&self, verb: StepAction) -> bool;
    /// Records the effects of steps that have ended.
    fn record_effects(&self, effects: &[Effect]);
    /// Receives the progress of the plan.
    fn progress(&self, now: Progress);
}

/// Progress of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// Completed share of the plan, 0 to 1.
    Part(f64),
    /// A cancel would not skip any step any more. Reported at most once.
    Committed,
}

/// Callback for the progress of a plan. Must not block.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// Slots of a host, and the steps that wait for them. `E` is the error of a step.
#[derive(Debug)]
pub struct Executor<E> {
    slots: Arc<Slots<E>>,
    alarm: OnceLock<()>,
}

impl<E: StepFailure> Executor<E> {
    /// Creates an executor without running steps.
    pub fn new(limits: StepLimits) -> Self {
        Self { slots: Arc::new(Slots::new(limits)), alarm: OnceLock::new() }
    }

    /// Changes the limits. Running steps continue.
    pub fn set_limits(&self, limits: StepLimits) {
        self.slots.set(limits);
    }

    /// Returns the slots in use, and the most that were in use.
    pub fn marks(&self) -> SlotUsage {
        self.slots.marks()
    }

    /// Returns the slots. Starts the task that watches for stuck steps at the first plan, because
    /// it needs a runtime.
    fn slots(&self) -> &Arc<Slots<E>> {
        self.alarm.get_or_init(|| {
            let (slots, rang) = (Arc::downgrade(&self.slots), self.slots.bell());
            tokio::spawn(slots::alarm(slots, rang));
        });
        &self.slots
    }
}
