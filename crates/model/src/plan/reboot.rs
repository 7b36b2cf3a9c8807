//! Reboot: stop and start in one plan. Each disk goes on by itself from its detach to its attach,
//! so a fast one does not wait for a slow one in between.

use super::builder::PlanBuilder;
use super::start::build_domain;
use super::stop::ask;
use super::{Cancel, GuestRequest, MachineState, Plan};

pub(super) fn hard(state: &MachineState) -> Plan {
    let mut draft = PlanBuilder::new(state);
    let cleared = draft.clear(None, Cancel::Before);
    build_domain(&mut draft, &cleared, false);
    draft.finish()
}

pub(super) fn clean(state: &MachineState) -> Plan {
    let mut draft = PlanBuilder::new(state);
    let ended = ask(&mut draft, GuestRequest::Reboot);
    let cleared = draft.clear(ended, Cancel::Never);
    build_domain(&mut draft, &cleared, false);
    draft.finish()
}
