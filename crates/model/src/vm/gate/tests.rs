//! Tests of all operations in all power states with all running operations, against an
//! independently written table.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::vm::Strictness::{Lenient, Strict};

/// Power states, and the operations that can begin in them.
const STATES: [(&[PowerState], &str); 12] = {
    use PowerState::{Halted, Paused, Running, Suspended};
    [
        (
            &[Halted],
            "start start_on provision make_into_template changing_VCPUs changing_static_range \
             changing_memory_limits changing_shadow_memory changing_NVRAM create_vtpm",
        ),
        (
            &[Running],
            "clean_shutdown clean_reboot suspend pause pool_migrate changing_VCPUs_live \
             call_plugin awaiting_memory_live changing_memory_live changing_shadow_memory_live \
             data_source_op send_sysrq send_trigger snapshot_with_quiesce",
        ),
        (&[Paused], "unpause"),
        (&[Suspended], "resume resume_on csvm"),
        (&[Paused, Running], "hard_reboot"),
        (&[Paused, Suspended, Running], "hard_shutdown shutdown checkpoint get_boot_record"),
        (&[Halted], "clone copy"),
        (&[Halted, Suspended], "destroy export create_template"),
        (&[Halted, Suspended, Running], "migrate_send"),
        (&[Halted, Running], "changing_dynamic_range"),
        (
            &[Halted, Paused, Suspended, Running],
            "snapshot revert reverting power_state_reset metadata_export assert_operation_valid \
             update_allowed_operations query_services",
        ),
        (&[], "import"),
    ]
};

/// Implemented operations; some of them are shown to clients.
const SERVED: &str = "clone copy snapshot snapshot_with_quiesce revert provision start start_on pause unpause clean_shutdown clean_reboot \
    hard_shutdown hard_reboot changing_dynamic_range changing_static_range \
    changing_memory_limits changing_VCPUs make_into_template destroy";
const SERVED_UNSEEN: &str =
    "shutdown power_state_reset reverting assert_operation_valid update_allowed_operations";

/// Operations that change nothing.
const READ_ONLY: &str = "assert_operation_valid update_allowed_operations";

fn op(name: &str) -> VmOp {
    VmOp::parse(name).unwrap_or_else(|| panic!("{name}"))
}

fn ops(names: &str) -> BTreeSet<VmOp> {
    names.split_whitespace().map(op).collect()
}

fn names(of: &[VmOp]) -> String {
    of.iter().map(|op| op.name()).collect::<Vec<_>>().join(" ")
}

/// Returns a machine of the kind that `op` is for, whose guest has all abilities.
fn machine(op: VmOp, power: PowerState) -> VmFacts {
    let is_snapshot = op == VmOp::Revert;
    let is_template = op == VmOp::Provision || is_snapshot;
    let guest = GuestFeatures { drivers: Tristate::Yes, ..GuestFeatures::default() };
    VmFacts { is_template, is_snapshot, guest, ..VmFacts::new(power) }
}

fn expected_states(op: VmOp) -> &'static [PowerState] {
    let mut of = STATES.iter().filter(|(_, names)| ops(names).contains(&op));
    let (states, _) = of.next().unwrap_or_else(|| panic!("{op:?} is in no line"));
    assert!(of.next().is_none(), "{op:?} is in two lines");
    states
}

/// Returns whether `one` may begin while only `other` runs.
fn runs_beside(one: &str, other: &str) -> bool {
    let in_both = |of: &[&str]| of.contains(&one) && of.contains(&other);
    let pair = |a, b| one == a && other == b;
    match one {
        "hard_shutdown" => other != "hard_shutdown",
        "hard_reboot" => !["hard_shutdown", "hard_reboot"].contains(&other),
        "assert_operation_valid" | "update_allowed_operations" => true,
        _ => {
            in_both(&["clone", "copy", "export"])
                || in_both(&["snapshot", "checkpoint"])
                || pair("get_boot_record", "get_boot_record")
                || pair("snapshot", "snapshot_with_quiesce")
                || pair("metadata_export", "migrate_send")
                || pair("clean_shutdown", "migrate_send")
                || pair("clean_reboot", "migrate_send")
                || pair("start", "migrate_send")
                || pair("start_on", "migrate_send")
        }
    }
}

#[test]
fn each_operation_in_each_state_beside_each_other() {
    let served: BTreeSet<_> = ops(SERVED).union(&ops(SERVED_UNSEEN)).copied().collect();
    let others: Vec<Option<VmOp>> =
        [None].into_iter().chain(VmOp::ALL.iter().copied().map(Some)).collect();
    let mut asked = 0;
    for &op in VmOp::ALL {
        let states = expected_states(op);
        for &power in PowerState::ALL {
            for &other in &others {
                let mut vm = machine(op, power);
                vm.current.extend(other);
                let live_range = op == VmOp::ChangingDynamicRange && power == PowerState::Running;
                let expected = if !states.contains(&power) {
                    Err(Refusal::BadPowerState { expected: states, actual: power })
                } else if let Some(other) = other.filter(|o| !runs_beside(op.name(), o.name())) {
                    Err(Refusal::OtherOperation { op: OngoingOp::Vm(other) })
                } else if !served.contains(&op) || live_range {
                    Err(Refusal::NotImplemented)
                } else {
                    Ok(())
                };
                for how in [Strict, Lenient] {
                    assert_eq!(check(op, &vm, how), expected, "{op:?} {power:?} {other:?}");
                }
                asked += 1;
            }
        }
    }
    assert_eq!(asked, 49 * 4 * 50);
}

#[test]
fn beside_two_others_means_beside_each_of_them() {
    let read_only = ops(READ_ONLY);
    for &op in VmOp::ALL {
        let always = op.name().starts_with("hard_") || read_only.contains(&op);
        for &one in VmOp::ALL {
            for &two in VmOp::ALL {
                let fine = conflict(op, &[one, two]).is_none();
                let each = runs_beside(op.name(), one.name()) && runs_beside(op.name(), two.name());
                // A migration or a quiesced snapshot starts its own operations while nothing else
                // runs.
                let alone = [VmOp::MigrateSend, VmOp::SnapshotWithQuiesce];
                let special = alone.contains(&one) || alone.contains(&two);
                let expected = each && (always || !special);
                assert_eq!(fine, expected, "{op:?} beside {one:?} and {two:?}");
            }
        }
    }
    let two = [VmOp::MigrateSend, VmOp::MetadataExport];
    assert_eq!(conflict(VmOp::CleanShutdown, &two), Some(VmOp::MigrateSend));
    assert_eq!(conflict(VmOp::HardShutdown, &two), None);
}

#[test]
fn the_first_of_two_violations_is_told() {
    type Violate = fn(&mut VmFacts);
    let op = VmOp::CleanShutdown;
    let states = expected_states(op);
    let order: [(Violate, Refusal); 6] = [
        (
            |vm| drop(vm.blocked.insert(VmOp::CleanShutdown, "audit".into())),
            Refusal::Blocked { reason: "audit".into() },
        ),
        (
            |vm| vm.power = PowerState::Paused,
            Refusal::BadPowerState { expected: states, actual: PowerState::Paused },
        ),
        (
            |vm| vm.current.push(VmOp::Pause),
            Refusal::OtherOperation { op: OngoingOp::Vm(VmOp::Pause) },
        ),
        (|vm| vm.is_template = true, Refusal::IsTemplate),
        (|vm| vm.is_control_domain = true, Refusal::IsControlDomain),
        (|vm| vm.guest.shutdown = Tristate::No, Refusal::LacksFeature(Feature::Shutdown)),
    ];
    for (first, (break_it, refusal)) in order.iter().enumerate() {
        for (also, _) in &order[first..] {
            let mut vm = machine(op, PowerState::Running);
            break_it(&mut vm);
            also(&mut vm);
            assert_eq!(check(op, &vm, Lenient), Err(refusal.clone()));
        }
    }
    // A snapshot is a template; the refusal says snapshot. Unimplemented operations come last.
    let snapshot = VmFacts { is_template: true, is_snapshot: true, ..machine(op, states[0]) };
    assert_eq!(check(op, &snapshot, Lenient), Err(Refusal::IsSnapshot));
    let template = VmFacts { is_template: true, ..machine(op, PowerState::Running) };
    assert_eq!(check(VmOp::Suspend, &template, Lenient), Err(Refusal::IsTemplate));
    let running = machine(op, PowerState::Running);
    assert_eq!(check(VmOp::Suspend, &running, Lenient), Err(Refusal::NotImplemented));
}

#[test]
fn templates_and_snapshots_have_their_own_operations() {
    let template = "changing_dynamic_range changing_static_range changing_memory_limits \
                    changing_shadow_memory changing_VCPUs clone copy export metadata_export \
                    provision assert_operation_valid update_allowed_operations destroy \
                    migrate_send";
    let snapshot = "revert clone copy export destroy hard_shutdown metadata_export \
                    assert_operation_valid update_allowed_operations";
    for &op in VmOp::ALL {
        let mut vm = VmFacts { is_template: true, ..VmFacts::new(PowerState::Halted) };
        let refused = check_kind(op, &vm);
        let expected = ops(template).contains(&op);
        assert_eq!(refused.is_ok(), expected, "{op:?}");
        vm.is_default_template = true;
        let kept = [VmOp::Destroy, VmOp::MigrateSend].contains(&op);
        assert_eq!(check_kind(op, &vm).is_ok(), expected && !kept, "{op:?}");
        vm.is_snapshot = true;
        assert_eq!(check_kind(op, &vm).is_ok(), ops(snapshot).contains(&op), "{op:?}");
    }
    let plain = VmFacts::new(PowerState::Halted);
    assert_eq!(check(VmOp::Provision, &plain, Lenient), Err(Refusal::NotTemplate));
    assert_eq!(check(VmOp::Revert, &plain, Lenient), Err(Refusal::NotSnapshot));
    let states = [PowerState::Halted, PowerState::Suspended];
    assert_eq!(power_states(VmOp::Clone, true), states);
    assert_eq!(power_states(VmOp::Copy, true), states);
}

/// Tests all combinations of reported drivers and shutdown.
#[test]
fn a_guest_is_asked_for_its_end_unless_it_has_denied_that() {
    for op in [VmOp::CleanShutdown, VmOp::CleanReboot] {
        for drivers in Tristate::ALL {
            for shutdown in Tristate::ALL {
                let guest = GuestFeatures { drivers, shutdown, ..GuestFeatures::default() };
                let vm = VmFacts { guest, ..VmFacts::new(PowerState::Running) };
                let silent = shutdown == Tristate::Unknown;
                let supported = shutdown == Tristate::Yes || silent && drivers == Tristate::Yes;
                let lacks = Err(Refusal::LacksFeature(Feature::Shutdown));
                let strict = if supported { Ok(()) } else { lacks.clone() };
                let lenient = if supported || silent { Ok(()) } else { lacks };
                assert_eq!(check(op, &vm, Strict), strict, "{guest:?}");
                assert_eq!(check(op, &vm, Lenient), lenient, "{guest:?}");
            }
        }
    }
}

#[test]
fn what_is_shown_of_ordinary_machines() {
    let shown = |vm: &VmFacts| names(&allowed(vm));
    let halted = VmFacts::new(PowerState::Halted);
    assert_eq!(
        shown(&halted),
        "snapshot clone copy start start_on changing_dynamic_range changing_static_range \
         changing_memory_limits changing_VCPUs make_into_template destroy"
    );
    let running = VmFacts::new(PowerState::Running);
    assert_eq!(
        shown(&running),
        "snapshot snapshot_with_quiesce pause hard_shutdown hard_reboot",
        "the guest is not up yet"
    );
    let up = machine(VmOp::CleanShutdown, PowerState::Running);
    assert_eq!(
        shown(&up),
        "snapshot snapshot_with_quiesce pause clean_shutdown clean_reboot hard_shutdown hard_reboot"
    );
    let ending = VmFacts { current: vec![VmOp::CleanShutdown], ..up.clone() };
    assert_eq!(shown(&ending), "hard_shutdown hard_reboot");
    let ended = VmFacts { current: vec![VmOp::HardShutdown], ..up.clone() };
    assert_eq!(shown(&ended), "");
    let paused = VmFacts::new(PowerState::Paused);
    assert_eq!(shown(&paused), "snapshot unpause hard_shutdown hard_reboot");
    assert_eq!(shown(&VmFacts::new(PowerState::Suspended)), "snapshot hard_shutdown destroy");
    let template = VmFacts { is_template: true, ..halted.clone() };
    let settings = "changing_dynamic_range changing_static_range changing_memory_limits \
                    changing_VCPUs";
    assert_eq!(shown(&template), format!("clone copy provision {settings} destroy"));
    let default = VmFacts { is_default_template: true, ..template.clone() };
    assert_eq!(shown(&default), format!("clone copy provision {settings}"));
    let host = VmFacts { is_control_domain: true, ..up.clone() };
    assert_eq!(shown(&host), "");
    let reason = String::from("audit");
    let blocked = VmFacts { blocked: BTreeMap::from([(VmOp::Pause, reason)]), ..up };
    assert_eq!(
        shown(&blocked),
        "snapshot snapshot_with_quiesce clean_shutdown clean_reboot hard_shutdown hard_reboot"
    );
}
