//! Carries out plans: a step begins as soon as what it waits for has ended and a slot is free.
//!
//! # Model
//! One [`Executor`] holds the slots of a host. [`Executor::run`] walks one plan; several walks go
//! on beside each other. Each step is a task of its own that calls [`StepRunner`]. Nothing is polled:
//! a walk wakes at the end of a step, at a deadline, at a cancel; the slots are looked at when one
//! becomes free and when a step becomes stuck.
//!
//! # How a step ends before its call does
//! - Its **deadline** runs from the moment when its call begins. What waits for a slot does so for
//!   as long as others move on: however many disks a healthy SR has to attach, each has its turn.
//!   A lane that [hangs](model::admission::Admission::hung_since) has no turns to give: the time for
//!   which it has not moved counts, so a step that never gets a slot of it ends in time as well.
//! - A call that must not be dropped is **left**: the step has failed, the call goes on, and holds
//!   its slots as a stuck one until it ends. So hung storage never gets more calls than its slots.
//! - A **cancel** leaves out what has not begun; what runs goes on to its end, except for a wait
//!   for the guest.
//! - When a plan is **overtaken**, what runs has [`OVERTAKE_GRACE`] to end, and is left then.

mod cancel;
mod error;
mod run;
mod slots;
mod steps;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model::admission::{SlotUsage, StepLimits};
use model::plan::{Effect, StepAction};

pub(crate) use cancel::CancelLevel;
pub use cancel::CancelToken;
pub use error::StepError;
pub use run::PlanOutcome;
use slots::Slots;

use crate::boxed_future::BoxFuture;

/// How long steps of a plan that is overtaken may still run: what a step takes on a host in good
/// order, so that only what hangs is left behind.
pub const OVERTAKE_GRACE: Duration = Duration::from_secs(1);

/// Carries out the steps of one plan.
pub trait StepRunner: Send + Sync + 'static {
    /// One call outward.
    fn run_step(&self, verb: StepAction) -> BoxFuture<'_, Result<(), StepError>>;
    /// Nobody waits for this step any more. True if its call must go on to its end; false if it
    /// may be dropped.
    fn abandon_step(&self, verb: StepAction) -> bool;
    /// What steps that have ended have come to.
    fn record_effects(&self, effects: &[Effect]);
    /// How the plan comes along.
    fn progress(&self, now: Progress);
}

/// How a plan comes along.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// How much of it is done, 0 to 1.
    Part(f64),
    /// It goes to its end now: a cancel would leave nothing out any more. Told once at most.
    Committed,
}

/// Who is told how it comes along. Must not wait.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// The slots of a host, and who waits for them.
#[derive(Debug)]
pub struct Executor {
    slots: Arc<Slots>,
    alarm: OnceLock<()>,
}

impl Executor {
    /// Nobody runs.
    pub fn new(limits: StepLimits) -> Self {
        Self { slots: Arc::new(Slots::new(limits)), alarm: OnceLock::new() }
    }

    /// Changes the limits. Steps that run go on.
    pub fn set_limits(&self, limits: StepLimits) {
        self.slots.set(limits);
    }

    /// What is held, and what was held at most.
    pub fn marks(&self) -> SlotUsage {
        self.slots.marks()
    }

    /// The slots. What wakes when a step becomes stuck is started with the first plan, because it
    /// needs a runtime.
    fn slots(&self) -> &Arc<Slots> {
        self.alarm.get_or_init(|| {
            let (slots, rang) = (Arc::downgrade(&self.slots), self.slots.bell());
            tokio::spawn(slots::alarm(slots, rang));
        });
        &self.slots
    }
}
