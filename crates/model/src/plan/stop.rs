//! Stop: the domain ends, then each device is taken down by itself, all beside each other.

use super::builder::{PlanBuilder, gone};
use super::{
    Cancel, DomainState, Effect, GuestRequest, MachineState, Plan, RunState, Step, StepAction,
    StepId,
};
use crate::vm::PowerState;

pub(super) fn hard(state: &MachineState) -> Plan {
    let mut draft = PlanBuilder::new(state);
    take_down(&mut draft, None, Cancel::Before);
    draft.finish()
}

pub(super) fn clean(state: &MachineState) -> Plan {
    let mut draft = PlanBuilder::new(state);
    let ended = ask(&mut draft, GuestRequest::Shutdown);
    take_down(&mut draft, ended, Cancel::Never);
    draft.finish()
}

pub(super) fn pause(state: &MachineState) -> Plan {
    let mut draft = PlanBuilder::new(state);
    let step = draft.step(StepAction::DomainPause, None);
    draft.add(Step { then: vec![Effect::Power(PowerState::Paused)], ..step });
    draft.finish()
}

/// Asks a guest that runs and waits until it has ended; nothing where none runs. One that does not
/// answer is no reason to end it by force: it is asked, and the operation fails if it still does not.
pub(super) fn ask(draft: &mut PlanBuilder<'_>, what: GuestRequest) -> Option<StepId> {
    let DomainState::There { run: RunState::Running | RunState::Silent, .. } = draft.state.domain
    else {
        return None;
    };
    let asked = draft.step(StepAction::DomainAsk(what), None);
    let asked = draft.add(asked);
    let ended = draft.step(StepAction::DomainAwaitEnd, [asked]);
    Some(draft.add(ended))
}

/// Halted is recorded when every volume is free: whoever sees it may destroy or start what it
/// names.
fn take_down(draft: &mut PlanBuilder<'_>, after: Option<StepId>, kill: Cancel) {
    let cleared = draft.clear(after, kill);
    let halted = [Effect::Power(PowerState::Halted)].into_iter().chain(gone(draft.state));
    draft.record(halted.collect(), cleared.all());
}
