//! Tests of reconcile plans: what they keep and what they remove.

use super::*;

#[test]
fn what_settle_keeps_is_in_its_table() {
    for state in all_states() {
        let plan = plan(&MachineOp::Reconcile, &state).unwrap();
        let kills = plan.steps().iter().any(|step| step.verb == StepAction::DomainKill);
        let creates =
            plan.steps().iter().any(|step| matches!(step.verb, StepAction::DomainCreate(_)));
        assert!(!creates, "a settle starts nothing: {state:?}");
        let alive = matches!(state.power, PowerState::Running | PowerState::Paused);
        let kept = match state.domain {
            DomainState::Absent | DomainState::Remains => continue,
            DomainState::Present { run, .. } => match run {
                RunState::Running => true,
                RunState::Created => state.power == PowerState::Paused,
                RunState::Paused | RunState::Unresponsive => alive,
                RunState::Ended(DomainExit::Panicked) => {
                    alive && state.after.crash == OnCrash::Preserve
                }
                RunState::Ended(_) => false,
            },
        };
        assert_eq!(kills, !kept, "{:?} {:?}", state.domain, state.power);
    }
}

#[test]
fn nothing_that_hangs_keeps_the_record_wrong() {
    for state in all_states() {
        let plan = plan(&MachineOp::Reconcile, &state).unwrap();
        let power = |step: &&Step| step.then.iter().any(|one| matches!(one, Effect::Power(_)));
        let steps: Vec<_> = plan.steps().iter().filter(power).collect();
        let [step] = steps[..] else { panic!("{steps:?}") };
        for id in &step.after {
            assert_eq!(plan.steps()[id.index()].slots, Slots::None, "{state:?}");
            assert_eq!(plan.steps()[id.index()].verb, StepAction::DomainKill);
        }
    }
}

#[test]
fn a_domain_that_does_not_answer_is_left_alone() {
    let mut state = running(machine(vec![disk(0, 1), cd(3, 2)], 1));
    state.domain = DomainState::Present { domid: Domid(3), run: RunState::Unresponsive };
    // The domain does not answer, so its devices are unknown.
    state.disks.iter_mut().for_each(|disk| disk.plugged = false);
    state.vifs[0].plugged = false;
    let settle = plan(&MachineOp::Reconcile, &state).unwrap();
    assert_eq!(shown(&settle), [r#"0 ("record", 0) <- "#]);
    // The records of its devices stay. Otherwise its storage could be detached while in use.
    let devices = |one: &Effect| matches!(one, Effect::Plugged(..) | Effect::Vif(..));
    assert!(!settle.steps()[0].then.iter().any(devices), "{settle:?}");
    // A hard shutdown kills it and removes everything.
    let killed = plan(&MachineOp::HardShutdown, &state).unwrap();
    assert_eq!(killed.steps()[0].verb, StepAction::DomainKill);
    assert_eq!(killed.steps().iter().filter(|step| step.slots != Slots::None).count(), 5);
}

#[test]
fn the_end_of_a_halted_machines_domain_starts_nothing() {
    for state in all_states().into_iter().filter(|state| state.power == PowerState::Halted) {
        for exit in
            [DomainExit::Rebooted, DomainExit::Panicked, DomainExit::Asked(VmOp::HardReboot)]
        {
            let after = plan(&MachineOp::AfterExit(exit), &state).unwrap();
            assert_eq!(after, plan(&MachineOp::Reconcile, &state).unwrap());
        }
    }
}

#[test]
fn a_reset_ends_whatever_is_there_in_every_state() {
    for state in all_states() {
        let plan = plan(&MachineOp::Reset, &state).unwrap();
        let has = |verb| plan.steps().iter().any(|step| step.verb == verb);
        let there = matches!(state.domain, DomainState::Present { .. });
        assert_eq!(has(StepAction::DomainKill), there, "{:?}", state.domain);
        assert_eq!(has(StepAction::DomainForget), state.domain != DomainState::Absent);
        let last = plan.steps().last().unwrap();
        assert_eq!(last.then.first(), Some(&Effect::Power(PowerState::Halted)));
        assert!(!plan.steps().iter().any(|step| matches!(step.verb, StepAction::DomainCreate(_))));
    }
}
