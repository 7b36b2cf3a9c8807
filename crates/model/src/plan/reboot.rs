//! Reboot: stop and start in one plan. Each disk continues from its detach to its attach by itself,
//! so a fast disk does not wait for a slow one in between.

use super::builder::PlanBuilder;
use super::start::{Boot, build_domain};
use super::stop::ask;
use super::{Cancel, GuestRequest, MachineState, Plan};

pub(super) fn hard(state: &MachineState) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    let teardown_steps = plan_builder.clear(None, Cancel::Before);
    build_domain(&mut plan_builder, &teardown_steps, Boot::AtOnce);
    plan_builder.finish()
}

pub(super) fn clean(state: &MachineState) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    let ended = ask(&mut plan_builder, GuestRequest::Reboot);
    let teardown_steps = plan_builder.clear(ended, Cancel::Never);
    build_domain(&mut plan_builder, &teardown_steps, Boot::AtOnce);
    plan_builder.finish()
}
