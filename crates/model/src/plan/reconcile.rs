//! Reconcile: makes the observed state and the record agree after a failure, a cancel or a restart
//! of the daemon.
//!
//! | observed | recorded running or paused | recorded halted |
//! |---|---|---|
//! | guest runs | stays | stays: its start was not recorded |
//! | CPUs stopped | stays, paused | is removed: it was to go |
//! | CPUs never ran | stays if paused: it was started so; is removed if running: a reboot did not end | is removed: its start did not end |
//! | guest has ended | is removed, unless its policy is to preserve it | is removed |
//! | no answer | stays: only a hard shutdown ends it | is removed |
//! | no process | remains are removed | remains are removed |
//!
//! A guest may have ended although no operation asked for it, while its machine is recorded running
//! or paused. Reconcile does not apply to it: the caller leaves it to the code that handles exits.
//!
//! The plan first records the true state, in a step of its own. Then it completes the devices that
//! a living domain has, and removes those that it does not have. Each device has its own steps, so
//! hung storage delays nothing else.

use super::builder::{PlanBuilder, gone};
use super::{Cancel, DomainState, Effect, MachineState, Plan, RunState};
use crate::id::Domid;
use crate::vbd::VbdKind;
use crate::vdi::automaton::VolumeState;
use crate::vm::PowerState;
use crate::vm::exits::{self, ExitAction};

pub(super) fn reconcile(state: &MachineState) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    match stays(state) {
        Some((domid, power)) => keep(&mut plan_builder, domid, power),
        None => {
            let teardown_steps = plan_builder.clear(None, Cancel::Never);
            let power = match state.power {
                PowerState::Suspended => PowerState::Suspended,
                _ => PowerState::Halted,
            };
            let truth = [Effect::Power(power)].into_iter().chain(gone(state));
            plan_builder.record(truth.collect(), teardown_steps.domain);
        }
    }
    plan_builder.finish()
}

/// Returns the domain to keep, and the power state to record for it.
fn stays(state: &MachineState) -> Option<(Domid, PowerState)> {
    let DomainState::Present { domid, run } = state.domain else { return None };
    let alive = matches!(state.power, PowerState::Running | PowerState::Paused);
    let power = match run {
        RunState::Running => PowerState::Running,
        RunState::Paused if alive => PowerState::Paused,
        RunState::Created if state.power == PowerState::Paused => PowerState::Paused,
        RunState::Unresponsive if alive => state.power,
        RunState::Ended(exit) if alive && exits::next(exit, &state.after) == ExitAction::Keep => {
            PowerState::Paused
        }
        RunState::Created | RunState::Paused | RunState::Unresponsive | RunState::Ended(_) => {
            return None;
        }
    };
    Some((domid, power))
}

fn keep(plan_builder: &mut PlanBuilder<'_>, domid: Domid, power: PowerState) {
    let state = plan_builder.state;
    let truth = [Effect::Power(power), Effect::Domid(Some(domid))];
    // The devices of a domain that does not answer are unknown, so their records stay.
    if matches!(state.domain, DomainState::Present { run: RunState::Unresponsive, .. }) {
        plan_builder.record(truth.to_vec(), None);
        return;
    }
    let disks = state.disks.iter().map(|disk| Effect::Plugged(disk.vbd, disk.plugged));
    let vifs = state.vifs.iter().map(|vif| Effect::Vif(vif.vif, vif.plugged));
    plan_builder.record(truth.into_iter().chain(disks).chain(vifs).collect(), None);
    for disk in &state.disks {
        let Some(medium) = disk.medium else { continue };
        let access = disk.volume.access().unwrap_or(disk.access);
        let goal =
            if disk.plugged { VolumeState::Activated(access) } else { VolumeState::Detached };
        let way = plan_builder.volume(disk, medium, (disk.volume, goal), None);
        if disk.kind == VbdKind::Cd && !disk.plugged {
            let last = way.last().map(|(_, id)| *id);
            plan_builder.record(vec![Effect::Medium(disk.vbd, None)], last);
        }
    }
    for vif in state.vifs.iter().filter(|vif| vif.created && !vif.plugged) {
        plan_builder.vif_destroy(vif.vif, None);
    }
}
