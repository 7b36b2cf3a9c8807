//! Tests of plans as literal lists, and of properties of all plans.

use super::*;

fn lines(op: MachineOp, state: &MachineState) -> Vec<String> {
    shown(&plan(&op, state).unwrap())
}

#[test]
fn a_start_makes_everything_ready_beside_each_other() {
    let state = machine(vec![disk(5, 1), disk(0, 1), cd(3, 2)], 1);
    let expected = [
        r#"0 ("memory", 0) <- "#,
        r#"1 ("boot-place", 0) <- 0"#,
        r#"2 ("create", 7) <- 1"#,
        r#"3 ("attach", 0) <- "#,
        r#"4 ("activate", 0) <- 3"#,
        r#"5 ("plug", 0) <- 2 3"#,
        r#"6 ("attach-ro", 3) <- "#,
        r#"7 ("activate", 3) <- 6"#,
        r#"8 ("insert", 3) <- 2 7"#,
        r#"9 ("attach", 5) <- "#,
        r#"10 ("activate", 5) <- 9"#,
        r#"11 ("plug", 5) <- 2 9"#,
        r#"12 ("vif-create", 0) <- "#,
        r#"13 ("vif-plug", 0) <- 2 12"#,
        r#"14 ("run", 0) <- 2 4 5 7 8 10 11 13"#,
    ];
    assert_eq!(lines(MachineOp::Start { paused: false }, &state), expected);
    let paused = plan(&MachineOp::Start { paused: true }, &state).unwrap();
    let last = paused.steps().last().unwrap();
    assert_eq!(last.verb, StepAction::Record);
    assert_eq!(last.then, [Effect::Power(PowerState::Paused)]);
}

#[test]
fn a_volume_is_reset_before_anything_of_the_new_domain_has_it() {
    let resets = DiskState { resets: true, ..disk(0, 1) };
    let twin = DiskState { vbd: vbd(4), userdevice: 4, ..resets };
    let reads = DiskState { access: Access::Ro, ..DiskState { resets: true, ..disk(1, 1) } };
    let state = machine(vec![resets, twin, reads], 0);
    let started = lines(MachineOp::Start { paused: false }, &state);
    let is_storage = |line: &&String| line.contains("attach") || line.contains("reset");
    let storage: Vec<_> = started.iter().filter(is_storage).collect();
    let expected = [
        r#"3 ("reset", 0) <- "#,
        r#"4 ("attach", 0) <- 3"#,
        r#"7 ("attach-ro", 1) <- "#,
        r#"10 ("attach", 4) <- 4"#,
    ];
    assert_eq!(storage, expected);
    let rebooted = lines(MachineOp::HardReboot, &running(machine(vec![resets], 0)));
    assert!(rebooted.contains(&r#"6 ("reset", 0) <- 3"#.into()), "{rebooted:#?}");
    let mut hotplugged = running(machine(vec![resets], 0));
    hotplugged.disks = vec![resets];
    let plugged = lines(MachineOp::VbdPlug(vbd(0)), &hotplugged);
    assert!(!plugged.iter().any(|line| line.contains("reset")), "{plugged:#?}");
}

#[test]
fn only_slots_of_one_volume_wait_for_each_other() {
    let reads = DiskState { access: Access::Ro, ..disk(0, 1) };
    let medium = Some(Medium { vdi: vdi(0), sr: sr(1) });
    let writes = DiskState { medium, ..disk(4, 1) };
    let other = DiskState { access: Access::Ro, ..disk(2, 1) };
    let state = machine(vec![reads, writes, other], 0);
    let lines = lines(MachineOp::Start { paused: false }, &state);
    assert!(lines.contains(&r#"3 ("attach-ro", 2) <- "#.into()), "{lines:#?}");
    assert!(lines.contains(&r#"6 ("attach", 4) <- "#.into()), "{lines:#?}");
    assert!(lines.contains(&r#"9 ("attach-ro", 0) <- 6"#.into()), "{lines:#?}");
    let plan = plan(&MachineOp::Start { paused: false }, &state).unwrap();
    let begun: Vec<_> =
        plan.steps().iter().filter(|step| step.begun).map(|s| short(&s.verb)).collect();
    assert_eq!(begun, [("activate", 2), ("activate", 4), ("activate", 0)]);
}

#[test]
fn a_stop_takes_every_device_down_by_itself() {
    let state = running(machine(vec![disk(0, 1), disk(1, 2)], 1));
    let hard = [
        r#"0 ("kill", 0) <- "#,
        r#"1 ("forget", 0) <- 0"#,
        r#"2 ("deactivate", 0) <- 0"#,
        r#"3 ("detach", 0) <- 2"#,
        r#"4 ("deactivate", 1) <- 0"#,
        r#"5 ("detach", 1) <- 4"#,
        r#"6 ("vif-destroy", 0) <- 0"#,
        r#"7 ("record", 0) <- 0 1 3 5 6"#,
    ];
    assert_eq!(lines(MachineOp::HardShutdown, &state), hard);
    let clean = lines(MachineOp::CleanShutdown, &state);
    assert_eq!(
        clean[..3],
        [r#"0 ("ask", 0) <- "#, r#"1 ("await", 0) <- 0"#, r#"2 ("kill", 0) <- 1"#]
    );
    let clean = plan(&MachineOp::CleanShutdown, &state).unwrap();
    let cancel: Vec<_> = clean.steps().iter().map(|step| step.cancel).collect();
    assert_eq!(cancel[..2], [Cancel::Before; 2]);
    assert!(cancel[2..].iter().all(|one| *one == Cancel::Never), "{cancel:?}");
}

/// A clean shutdown must not kill a guest because the host is busy.
#[test]
fn one_that_does_not_answer_is_asked_and_not_killed() {
    let mut state = running(machine(vec![disk(0, 1)], 1));
    state.domain = DomainState::Present { domid: Domid(3), run: RunState::Unresponsive };
    for op in [MachineOp::CleanShutdown, MachineOp::CleanReboot] {
        let lines = lines(op, &state);
        let first = [r#"0 ("ask", 0) <- "#, r#"1 ("await", 0) <- 0"#, r#"2 ("kill", 0) <- 1"#];
        assert_eq!(lines[..3], first, "{op:?}");
    }
}

#[test]
fn a_reboot_goes_on_disk_by_disk() {
    let state = running(machine(vec![disk(0, 1), disk(1, 2)], 0));
    let expected = [
        r#"0 ("kill", 0) <- "#,
        r#"1 ("forget", 0) <- 0"#,
        r#"2 ("deactivate", 0) <- 0"#,
        r#"3 ("detach", 0) <- 2"#,
        r#"4 ("deactivate", 1) <- 0"#,
        r#"5 ("detach", 1) <- 4"#,
        r#"6 ("memory", 0) <- 0 1"#,
        r#"7 ("create", 7) <- 6"#,
        r#"8 ("attach", 0) <- 3"#,
        r#"9 ("activate", 0) <- 8"#,
        r#"10 ("plug", 0) <- 7 8"#,
        r#"11 ("attach", 1) <- 5"#,
        r#"12 ("activate", 1) <- 11"#,
        r#"13 ("plug", 1) <- 7 11"#,
        r#"14 ("run", 0) <- 7 9 10 12 13"#,
    ];
    assert_eq!(lines(MachineOp::HardReboot, &state), expected);
    assert_eq!(lines(MachineOp::AfterExit(DomainExit::Rebooted), &state), expected);
    assert_eq!(lines(MachineOp::CleanReboot, &state).len(), expected.len() + 2);
}

#[test]
fn devices_come_and_go_alone() {
    let mut state = running(machine(vec![disk(0, 1), cd(3, 2), disk(1, 1)], 1));
    state.disks[2] = disk(1, 1);
    assert_eq!(
        lines(MachineOp::VbdPlug(vbd(1)), &state),
        [r#"0 ("attach", 1) <- "#, r#"1 ("activate", 1) <- 0"#, r#"2 ("plug", 1) <- 0"#]
    );
    // A plan recreates what a failure left.
    let left = |volume| {
        let mut state = state.clone();
        state.disks[2].volume = volume;
        lines(MachineOp::VbdPlug(vbd(1)), &state)
    };
    let anew = [r#"0 ("deactivate", 1) <- "#, r#"1 ("detach", 1) <- 0"#];
    let anew = anew.map(str::to_owned).into_iter();
    let last = [r#"2 ("attach", 1) <- 1"#, r#"3 ("activate", 1) <- 2"#, r#"4 ("plug", 1) <- 2"#];
    let anew: Vec<_> = anew.chain(last.map(str::to_owned)).collect();
    assert_eq!(left(VolumeState::Activated(Access::Rw)), anew);
    assert_eq!(left(VolumeState::Attached(Access::Rw)).len(), 4);
    let out = |force| lines(MachineOp::VbdUnplug { vbd: vbd(0), force }, &state);
    assert_eq!(
        out(false),
        [r#"0 ("unplug", 0) <- "#, r#"1 ("deactivate", 0) <- 0"#, r#"2 ("detach", 0) <- 1"#]
    );
    assert_eq!(out(true)[1], r#"1 ("deactivate", 0) <- "#);
    assert_eq!(lines(MachineOp::Eject(vbd(3)), &state).last().unwrap(), r#"3 ("record", 0) <- 2"#);
    assert_eq!(
        lines(MachineOp::VifUnplug(vif(0)), &state),
        [r#"0 ("vif-unplug", 0) <- "#, r#"1 ("vif-destroy", 0) <- 0"#]
    );
    // The plan records what the guest has released by itself, and removes its host side.
    let mut late = state.clone();
    (late.disks[0].plugged, late.vifs[0].plugged) = (false, false);
    let records = |op: &MachineOp, effect| {
        let plan = plan(op, &late).unwrap();
        assert_eq!(plan.steps()[0].then, [effect]);
        plan.steps().len()
    };
    let unplug = MachineOp::VbdUnplug { vbd: vbd(0), force: false };
    assert_eq!(records(&unplug, Effect::Plugged(vbd(0), false)), 3);
    assert_eq!(records(&MachineOp::VifUnplug(vif(0)), Effect::Vif(vif(0), false)), 2);
    state.vifs[0] = VifState { created: false, plugged: false, ..state.vifs[0] };
    assert_eq!(
        lines(MachineOp::VifPlug(vif(0)), &state),
        [r#"0 ("vif-create", 0) <- "#, r#"1 ("vif-plug", 0) <- 0"#]
    );
    state.disks[1] = cd(3, 2);
    assert_eq!(lines(MachineOp::Insert(vbd(3)), &state).last().unwrap(), r#"2 ("insert", 3) <- 1"#);
}

#[test]
fn what_has_no_meaning_is_refused() {
    let state = running(machine(vec![disk(0, 1), cd(3, 2)], 1));
    let mut without = state.clone();
    without.disks = vec![disk(0, 1), DiskState { medium: None, ..cd(3, 2) }];
    without.vifs[0] = VifState { created: false, plugged: false, ..state.vifs[0] };
    let halted = machine(vec![disk(0, 1)], 0);
    let mut dead = state.clone();
    dead.domain = DomainState::Present { domid: Domid(3), run: RunState::Unresponsive };
    let not_allowed = |refusal: &Refusal| matches!(refusal, Refusal::NotAllowed(_));
    let unplug = |n| MachineOp::VbdUnplug { vbd: vbd(n), force: false };
    for (op, state, expected) in [
        (MachineOp::VbdPlug(vbd(0)), &state, Refusal::AlreadyAttached),
        (unplug(0), &without, Refusal::AlreadyDetached),
        (MachineOp::Insert(vbd(0)), &state, Refusal::NotRemovable),
        (MachineOp::Insert(vbd(3)), &state, Refusal::NotEmpty),
        (MachineOp::Insert(vbd(3)), &without, Refusal::Empty),
        (MachineOp::Eject(vbd(0)), &state, Refusal::NotRemovable),
        (MachineOp::Eject(vbd(3)), &without, Refusal::Empty),
        (MachineOp::VifPlug(vif(0)), &state, Refusal::AlreadyAttached),
        (MachineOp::VifUnplug(vif(0)), &without, Refusal::AlreadyDetached),
        (MachineOp::VbdPlug(vbd(9)), &state, Refusal::NoSuchDevice(vbd(9).to_string())),
        (MachineOp::VifPlug(vif(9)), &state, Refusal::NoSuchDevice(vif(9).to_string())),
    ] {
        assert_eq!(plan(&op, state).unwrap_err(), expected, "{op:?}");
    }
    for (op, state) in
        [(MachineOp::VbdPlug(vbd(3)), &state), (unplug(3), &state), (unplug(0), &dead)]
    {
        assert!(not_allowed(&plan(&op, state).unwrap_err()), "{op:?}");
    }
    for op in [unplug(0), MachineOp::HardShutdown, MachineOp::CleanReboot, MachineOp::Unpause] {
        let Refusal::BadPowerState { expected, actual } = plan(&op, &halted).unwrap_err() else {
            panic!("{op:?}");
        };
        assert!(actual == PowerState::Halted && !expected.contains(&actual), "{op:?}");
    }
}

#[test]
fn what_is_open_for_reading_is_not_opened_for_writing() {
    let mut state = running(machine(vec![disk(0, 1), disk(1, 1)], 0));
    state.disks[1].medium = state.disks[0].medium;
    (state.disks[1].plugged, state.disks[1].volume) = (false, VolumeState::Detached);
    let plug = MachineOp::VbdPlug(vbd(1));
    assert!(plan(&plug, &state).is_ok(), "two may write what may be shared");
    state.disks[0].volume = VolumeState::Activated(Access::Ro);
    assert_eq!(plan(&plug, &state).unwrap_err(), Refusal::VdiInUse);
    state.disks[1].access = Access::Ro;
    assert!(plan(&plug, &state).is_ok());
}

#[test]
fn every_plan_is_sound() {
    let ops = [
        MachineOp::Start { paused: false },
        MachineOp::Start { paused: true },
        MachineOp::CleanShutdown,
        MachineOp::HardShutdown,
        MachineOp::CleanReboot,
        MachineOp::HardReboot,
        MachineOp::Pause,
        MachineOp::Unpause,
        MachineOp::VbdPlug(vbd(0)),
        MachineOp::VbdUnplug { vbd: vbd(0), force: false },
        MachineOp::VbdUnplug { vbd: vbd(0), force: true },
        MachineOp::Insert(vbd(3)),
        MachineOp::Eject(vbd(3)),
        MachineOp::VifPlug(vif(0)),
        MachineOp::VifUnplug(vif(0)),
        MachineOp::AfterExit(DomainExit::PoweredOff),
        MachineOp::AfterExit(DomainExit::Rebooted),
        MachineOp::AfterExit(DomainExit::Panicked),
        MachineOp::AfterExit(DomainExit::Killed),
        MachineOp::AfterExit(DomainExit::Asked(VmOp::CleanReboot)),
        MachineOp::Reset,
        MachineOp::Reconcile,
    ];
    let mut planned = 0;
    for state in all_states() {
        for op in ops {
            let Ok(plan) = plan(&op, &state) else { continue };
            planned += 1;
            for (at, step) in plan.steps().iter().enumerate() {
                assert!(step.after.iter().all(|id| id.index() < at), "{op:?}: {step:?}");
                let pure = step.verb == StepAction::Record;
                assert_eq!((step.deadline.is_zero(), step.weight == 0), (pure, pure), "{step:?}");
                let slots = matches!(
                    step.verb,
                    StepAction::VbdAttach(..)
                        | StepAction::VbdActivate(_)
                        | StepAction::VbdDeactivate(_)
                        | StepAction::VbdDetach(_)
                        | StepAction::VifCreate(_)
                        | StepAction::VifDestroy(_)
                );
                assert_eq!(step.slots != Slots::None, slots, "{step:?}");
            }
            assert!(
                plan.weight() > 0 || op == MachineOp::Reconcile || plan.steps().len() < 2,
                "{op:?}"
            );
        }
    }
    assert!(planned > 1000, "{planned}");
}

#[test]
fn the_longest_path_is_the_sum_along_one_chain() {
    let start =
        |disks: Vec<DiskState>| plan(&MachineOp::Start { paused: false }, &machine(disks, 0));
    let of = |seconds| Duration::from_secs(seconds);
    // Memory, place, create, plug, run; the attach and activate of one disk take as long.
    let place = 24 * 60 * 60;
    assert_eq!(start(Vec::new()).unwrap().longest_path(), of(60 + place + 60 + 30));
    let one = start(vec![disk(0, 1)]).unwrap().longest_path();
    assert_eq!(one, of(60 + place + 60 + 30 + 30));
    assert_eq!(start((0..100).map(|n| disk(n, 1)).collect()).unwrap().longest_path(), one);
    let stop = plan(&MachineOp::CleanShutdown, &running(machine(vec![disk(0, 1)], 0))).unwrap();
    assert_eq!(stop.longest_path(), of(30 + 1200 + 15 + 60 + 60));
    assert_eq!(Plan::default().longest_path(), Duration::ZERO);
}
