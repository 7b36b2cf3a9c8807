//! What a settle leaves as it is, and what it takes down.

use super::*;

#[test]
fn what_settle_keeps_is_in_its_table() {
    for state in all_states() {
        let plan = plan(&Op::Settle, &state).unwrap();
        let kills = plan.steps().iter().any(|step| step.verb == Verb::DomainKill);
        let creates = plan.steps().iter().any(|step| matches!(step.verb, Verb::DomainCreate(_)));
        assert!(!creates, "a settle starts nothing: {state:?}");
        let alive = matches!(state.power, PowerState::Running | PowerState::Paused);
        let kept = match state.domain {
            DomainSeen::Absent | DomainSeen::Remains => continue,
            DomainSeen::There { run, .. } => match run {
                Run::Running => true,
                Run::Fresh => state.power == PowerState::Paused,
                Run::Paused | Run::Silent => alive,
                Run::Ended(Exit::Panicked) => alive && state.after.crash == OnCrash::Preserve,
                Run::Ended(_) => false,
            },
        };
        assert_eq!(kills, !kept, "{:?} {:?}", state.domain, state.power);
    }
}

#[test]
fn nothing_that_hangs_keeps_the_record_wrong() {
    for state in all_states() {
        let plan = plan(&Op::Settle, &state).unwrap();
        let power = |step: &&Step| step.then.iter().any(|one| matches!(one, Effect::Power(_)));
        let told: Vec<_> = plan.steps().iter().filter(power).collect();
        let [told] = told[..] else { panic!("{told:?}") };
        for id in &told.after {
            assert_eq!(plan.steps()[id.index()].slots, Slots::None, "{state:?}");
            assert_eq!(plan.steps()[id.index()].verb, Verb::DomainKill);
        }
    }
}

#[test]
fn a_domain_that_does_not_answer_is_left_alone() {
    let mut state = running(machine(vec![disk(0, 1), cd(3, 2)], 1));
    state.domain = DomainSeen::There { domid: Domid(3), run: Run::Silent };
    // Who knows whether it has them: nobody can ask.
    state.disks.iter_mut().for_each(|disk| disk.plugged = false);
    state.vifs[0].plugged = false;
    let settle = plan(&Op::Settle, &state).unwrap();
    assert_eq!(shown(&settle), [r#"0 ("record", 0) <- "#]);
    // So what is recorded of its devices stays: else its storage could be taken from under it.
    let devices = |one: &Effect| matches!(one, Effect::Plugged(..) | Effect::Vif(..));
    assert!(!settle.steps()[0].then.iter().any(devices), "{settle:?}");
    // It can be killed, and all goes with it.
    let killed = plan(&Op::HardShutdown, &state).unwrap();
    assert_eq!(killed.steps()[0].verb, Verb::DomainKill);
    assert_eq!(killed.steps().iter().filter(|step| step.slots != Slots::None).count(), 5);
}

#[test]
fn the_end_of_a_halted_machines_domain_starts_nothing() {
    for state in all_states().into_iter().filter(|state| state.power == PowerState::Halted) {
        for exit in [Exit::Rebooted, Exit::Panicked, Exit::Asked(VmOp::HardReboot)] {
            let after = plan(&Op::AfterExit(exit), &state).unwrap();
            assert_eq!(after, plan(&Op::Settle, &state).unwrap());
        }
    }
}

#[test]
fn a_reset_ends_whatever_is_there_in_every_state() {
    for state in all_states() {
        let plan = plan(&Op::Reset, &state).unwrap();
        let has = |verb| plan.steps().iter().any(|step| step.verb == verb);
        let there = matches!(state.domain, DomainSeen::There { .. });
        assert_eq!(has(Verb::DomainKill), there, "{:?}", state.domain);
        assert_eq!(has(Verb::DomainForget), state.domain != DomainSeen::Absent);
        let last = plan.steps().last().unwrap();
        assert_eq!(last.then.first(), Some(&Effect::Power(PowerState::Halted)));
        assert!(!plan.steps().iter().any(|step| matches!(step.verb, Verb::DomainCreate(_))));
    }
}
