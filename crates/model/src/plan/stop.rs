//! Stop: the plan ends the domain, then tears down each device by itself, all concurrently.

use super::builder::{PlanBuilder, gone};
use super::{
    Cancel, DomainState, Effect, GuestRequest, MachineState, Plan, RunState, Step, StepAction,
    StepId,
};
use crate::vm::PowerState;

pub(super) fn hard(state: &MachineState) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    take_down(&mut plan_builder, None, Cancel::Before);
    plan_builder.finish()
}

pub(super) fn clean(state: &MachineState) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    let ended = ask(&mut plan_builder, GuestRequest::Shutdown);
    take_down(&mut plan_builder, ended, Cancel::Never);
    plan_builder.finish()
}

pub(super) fn pause(state: &MachineState) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    let step = plan_builder.step(StepAction::DomainPause, None);
    plan_builder.add(Step { then: vec![Effect::Power(PowerState::Paused)], ..step });
    plan_builder.finish()
}

/// Adds the request to a running guest and the wait for its end; `None` if no guest runs. A domain
/// that does not answer is not killed: it gets the request, and the operation fails if it does not
/// end.
pub(super) fn ask(plan_builder: &mut PlanBuilder<'_>, what: GuestRequest) -> Option<StepId> {
    let DomainState::Present { run: RunState::Running | RunState::Unresponsive, .. } =
        plan_builder.state.domain
    else {
        return None;
    };
    let asked = plan_builder.step(StepAction::DomainAsk(what), None);
    let asked = plan_builder.add(asked);
    let ended = plan_builder.step(StepAction::DomainAwaitEnd, [asked]);
    Some(plan_builder.add(ended))
}

/// Adds the teardown. Halted is recorded when every volume is free, because a client that sees it
/// may destroy or start these volumes.
fn take_down(plan_builder: &mut PlanBuilder<'_>, after: Option<StepId>, kill: Cancel) {
    let teardown_steps = plan_builder.clear(after, kill);
    let halted = [Effect::Power(PowerState::Halted)].into_iter().chain(gone(plan_builder.state));
    plan_builder.record(halted.collect(), teardown_steps.all());
}
