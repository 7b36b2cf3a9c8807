//! Execution of one plan.

use std::future::pending;
use std::sync::Arc;

use model::id::VmId;
use model::plan::{Cancel as Until, Plan, StepAction};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::slots::{SlotGuard, Slots};
use super::steps::{StepPhase, Steps, waits_for_guest};
use super::{
    CancelLevel, CancelToken, Executor, PREEMPT_GRACE, Progress, StepFailure, StepRunner,
    StepTimeout,
};

/// Result of a plan.
#[derive(Debug)]
pub struct PlanOutcome<E> {
    /// First step that failed, and its error.
    pub failed: Option<(StepAction, E)>,
    /// True if a cancel skipped a step.
    pub cut: bool,
}

/// Event of a plan run.
#[derive(Debug)]
pub(super) enum Event<E> {
    /// A step received its slots.
    Begin { at: usize, slot_guard: SlotGuard<E> },
    /// A step's call has ended. Its slots become free only after this event is processed, so the
    /// effects of a failure come before the next steps.
    Ended { at: usize, outcome: Result<(), E>, slot_guard: SlotGuard<E> },
}

struct PlanRun<'a, E> {
    slots: &'a Arc<Slots<E>>,
    vm: VmId,
    by: Arc<dyn StepRunner<Error = E>>,
    steps: Steps,
    sender: UnboundedSender<Event<E>>,
    failed: Option<(StepAction, E)>,
    cut: bool,
    /// Progress last reported, 0 to 1.
    done: f64,
    /// True if [`Progress::Committed`] was reported.
    committed: bool,
    level: CancelLevel,
    /// Time at which running steps are abandoned.
    give_up: Option<Instant>,
}

impl<E: StepFailure> Executor<E> {
    /// Executes a plan of this machine. Returns when no step runs and none can begin.
    pub async fn run(
        &self,
        plan: Plan,
        vm: VmId,
        by: Arc<dyn StepRunner<Error = E>>,
        cancel: &CancelToken,
    ) -> PlanOutcome<E> {
        let (sender, mut receiver) = unbounded_channel();
        let steps = Steps::new(plan);
        let (slots, level) = (self.slots(), CancelLevel::None);
        let (failed, cut, done, give_up) = (None, false, 0.0, None);
        let committed = false;
        let mut plan_run =
            PlanRun { slots, vm, by, steps, sender, failed, cut, done, committed, level, give_up };
        plan_run.advance();
        while !plan_run.steps.are_over() {
            plan_run.next(&mut receiver, cancel).await;
            while let Ok(event) = receiver.try_recv() {
                plan_run.handle_event(event);
            }
            plan_run.advance();
        }
        PlanOutcome { failed: plan_run.failed, cut: plan_run.cut }
    }
}

impl<E: StepFailure> PlanRun<'_, E> {
    /// Waits for the first event.
    async fn next(&mut self, receiver: &mut UnboundedReceiver<Event<E>>, cancel: &CancelToken) {
        let deadline = self.steps.next_deadline().into_iter().chain(self.give_up).min();
        let deadline = async {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let stronger = async {
            match self.level.stronger() {
                Some(level) => cancel.reached(level).await,
                None => pending().await,
            }
        };
        // A step that ended in time counts as ended, even if this is seen late. So the order is
        // fixed.
        tokio::select! {
            biased;
            Some(event) = receiver.recv() => self.handle_event(event),
            () = stronger => self.cancelled(cancel.level()),
            () = deadline => self.late(Instant::now()),
        }
    }

    fn handle_event(&mut self, event: Event<E>) {
        match event {
            Event::Begin { at, slot_guard } => self.begin(at, slot_guard),
            Event::Ended { at, outcome, slot_guard } => {
                match outcome {
                    // An abandoned step is already processed.
                    _ if !matches!(self.steps.at(at), Some(StepPhase::Runs { .. })) => {}
                    Ok(()) => self.steps.ended(at),
                    Err(error) => self.failed(at, error),
                }
                drop(slot_guard);
            }
        }
    }

    /// Reports the results of ended steps, then makes the steps that waited for them ready.
    fn advance(&mut self) {
        let ready = self.steps.begin();
        let effects = self.steps.take_effects();
        if !effects.is_empty() {
            self.by.record_effects(&effects);
        }
        let done = self.steps.progress();
        if done > self.done {
            self.done = done;
            self.by.progress(Progress::Part(done));
        }
        self.commits();
        let now = Instant::now();
        for at in &ready {
            let Some(step) = self.steps.step(*at) else { continue };
            let deadline = now + step.deadline;
            let key = self.slots.ready(self.vm, (step.slots, step.begun), (&self.sender, *at));
            self.steps.set(*at, StepPhase::Ready { key, since: now, deadline });
        }
        if !ready.is_empty() {
            self.slots.admit();
        }
    }

    /// Reports when a cancel would not skip any step any more.
    ///
    /// A plan with a failed step does not report it: another plan retries or reconciles the
    /// machine.
    fn commits(&mut self) {
        let ends_well = self.failed.is_none() && self.level == CancelLevel::None;
        let under_way = !self.steps.are_over() && !self.steps.can_be_cut();
        if ends_well && under_way && !self.committed {
            self.committed = true;
            self.by.progress(Progress::Committed);
        }
    }

    fn begin(&mut self, at: usize, slot_guard: SlotGuard<E>) {
        let (Some(&StepPhase::Ready { since, .. }), Some(step)) =
            (self.steps.at(at), self.steps.step(at))
        else {
            return;
        };
        if self.steps.closing && step.cancel == Until::Before {
            return self.steps.set(at, StepPhase::LeftOut);
        }
        let deadline = counts_from(since, slot_guard.hung_since()) + step.deadline;
        let (by, sender, verb) = (Arc::clone(&self.by), self.sender.clone(), step.verb);
        let task = tokio::spawn(async move {
            let outcome = by.run_step(verb).await;
            // If the run is over, the send fails and drops the guard, which frees the slots.
            let _ = sender.send(Event::Ended { at, outcome, slot_guard });
        });
        self.steps.set(at, StepPhase::Runs { task: task.abort_handle(), deadline });
    }

    fn failed(&mut self, at: usize, error: E) {
        self.steps.failed(at);
        let verb = self.steps.step(at).map(|step| step.verb);
        if let (None, Some(verb)) = (&self.failed, verb) {
            self.failed = Some((verb, error));
        }
        self.withdraw();
    }

    /// Processes passed deadlines of steps, and the deadline of a preempted plan.
    fn late(&mut self, now: Instant) {
        for at in self.steps.late(now) {
            let after = self.steps.step(at).map(|step| step.deadline).unwrap_or_default();
            match self.steps.at(at) {
                Some(&StepPhase::Ready { key, since, .. }) => {
                    let deadline = counts_from(since, self.slots.hung_since(key)) + after;
                    if deadline > now {
                        self.steps.set(at, StepPhase::Ready { key, since, deadline });
                        continue;
                    }
                }
                Some(StepPhase::Runs { .. }) => {}
                // The failure of another step has skipped it.
                _ => continue,
            }
            self.stop(at);
            self.failed(at, StepTimeout { after }.into());
        }
        if self.give_up.is_some_and(|at| at <= now) {
            self.give_up = None;
            for at in self.steps.which(|step_phase| {
                matches!(step_phase, StepPhase::Ready { .. } | StepPhase::Runs { .. })
            }) {
                self.leave_out(at);
            }
        }
    }

    fn cancelled(&mut self, level: CancelLevel) {
        self.level = level;
        if level == CancelLevel::Preempted {
            self.give_up = Some(Instant::now() + PREEMPT_GRACE);
        }
        let is_open = |step_phase: &StepPhase| {
            matches!(step_phase, StepPhase::Waits | StepPhase::Ready { .. })
        };
        let open = self.steps.which(is_open).into_iter();
        let mut open = open.filter_map(|at| self.steps.step(at));
        self.cut |= open.any(|step| step.cancel == Until::Before);
        self.steps.closing = true;
        self.withdraw();
        // A wait for a guest may take twenty minutes.
        for at in self.steps.which(|step_phase| matches!(step_phase, StepPhase::Runs { .. })) {
            if self.steps.step(at).is_some_and(waits_for_guest) {
                self.leave_out(at);
            }
        }
    }

    /// Skips steps that wait for slots and can be cancelled.
    fn withdraw(&mut self) {
        for at in self.steps.which(|step_phase| matches!(step_phase, StepPhase::Ready { .. })) {
            if self.steps.step(at).is_some_and(|step| step.cancel == Until::Before) {
                self.stop(at);
                self.steps.set(at, StepPhase::LeftOut);
            }
        }
    }

    fn leave_out(&mut self, at: usize) {
        self.stop(at);
        self.steps.set(at, StepPhase::LeftOut);
        (self.cut, self.steps.closing) = (true, true);
    }

    /// Ends a step: drops its call, or abandons it.
    fn stop(&self, at: usize) {
        match self.steps.at(at) {
            Some(StepPhase::Ready { key, .. }) => self.slots.done(*key),
            Some(StepPhase::Runs { task, .. }) => {
                let verb = self.steps.step(at).map(|step| step.verb);
                if !verb.is_some_and(|verb| self.by.abandon_step(verb)) {
                    task.abort();
                }
            }
            _ => {}
        }
    }
}

/// Returns the time from which the deadline of a step that was ready at `since` runs: not while its
/// lane progresses.
fn counts_from(since: Instant, hung_since: Option<Instant>) -> Instant {
    hung_since.map_or_else(Instant::now, |hung| hung.max(since))
}
