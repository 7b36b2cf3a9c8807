//! Tests of all operations with all running operations and all kinds of users.

use super::*;
use crate::vbd::VbdOp;
use crate::vdi::VdiUser;
use crate::vm::PowerState;

const SERVED: [&str; 9] = [
    "clone",
    "copy",
    "snapshot",
    "resize",
    "resize_online",
    "destroy",
    "forget",
    "update",
    "set_on_boot",
];
/// Operations that are possible on a plugged disk.
const LIVE: [&str; 8] = [
    "snapshot",
    "clone",
    "resize_online",
    "mirror",
    "enable_cbt",
    "disable_cbt",
    "data_destroy",
    "blocked",
];

fn vdi() -> VdiFacts {
    VdiFacts { sr_attached: true, ..VdiFacts::default() }
}

fn user(access: Access, attached: bool, op: Option<VbdOp>) -> VdiUser {
    VdiUser { access, attached, op, vm: PowerState::Running }
}

fn unless_unserved(op: VdiOp) -> Result<(), Refusal> {
    if SERVED.contains(&op.name()) { Ok(()) } else { Err(Refusal::NotImplemented) }
}

#[test]
fn each_operation_beside_each_other() {
    for &op in VdiOp::ALL {
        for &other in VdiOp::ALL {
            let busy = VdiFacts { current: vec![other], ..vdi() };
            let reads = ["copy", "clone", "snapshot", "list_changed_blocks"].contains(&op.name());
            let expected = if other.name() == "copy" && reads {
                unless_unserved(op)
            } else {
                Refusal::beside(OngoingOp::Vdi(other))
            };
            assert_eq!(check(op, &busy), expected, "{op:?} beside {other:?}");
        }
    }
}

#[test]
fn each_operation_beside_each_user() {
    for &op in VdiOp::ALL {
        for &access in Access::ALL {
            for attached in [false, true] {
                for vbd_op in [None, Some(VbdOp::Unplug)] {
                    let users = vec![user(access, attached, vbd_op)];
                    let used = VdiFacts { users, ..vdi() };
                    let copied = op.name() == "copy" && access == Access::Ro;
                    let expected = if attached && !LIVE.contains(&op.name()) && !copied {
                        Err(Refusal::VdiInUse)
                    } else if let Some(other) = vbd_op {
                        Refusal::beside(OngoingOp::Vbd(other))
                    } else {
                        unless_unserved(op)
                    };
                    assert_eq!(check(op, &used), expected, "{op:?} {access:?} {attached}");
                }
            }
        }
    }
}

#[test]
fn the_first_of_two_violations_is_told() {
    type Violate = fn(&mut VdiFacts);
    let order: [(Violate, Refusal); 5] = [
        (
            |vdi| vdi.current.push(VdiOp::Update),
            Refusal::OtherOperation { op: OngoingOp::Vdi(VdiOp::Update) },
        ),
        (|vdi| vdi.sr_attached = false, Refusal::SrNotAttached),
        (|vdi| vdi.users.push(user(Access::Ro, true, None)), Refusal::VdiInUse),
        (|vdi| vdi.missing = true, Refusal::VdiMissing),
        (|vdi| vdi.read_only = true, Refusal::VdiReadOnly),
    ];
    for (first, (break_it, refusal)) in order.iter().enumerate() {
        for (also, _) in &order[first..] {
            let mut vdi = vdi();
            break_it(&mut vdi);
            also(&mut vdi);
            assert_eq!(check(VdiOp::Resize, &vdi), Err(refusal.clone()));
        }
    }
}

#[test]
fn what_is_shown() {
    let shown =
        |vdi: &VdiFacts| allowed(vdi).iter().map(|op| op.name()).collect::<Vec<_>>().join(" ");
    let all = "clone copy resize resize_online snapshot destroy forget update set_on_boot";
    assert_eq!(shown(&vdi()), all);
    let used = VdiFacts { users: vec![user(Access::Rw, true, None)], ..vdi() };
    assert_eq!(shown(&used), "clone resize_online snapshot");
    let read_only = VdiFacts { read_only: true, ..vdi() };
    assert_eq!(shown(&read_only), "clone copy snapshot destroy forget update");
    assert_eq!(shown(&VdiFacts { missing: true, ..vdi() }), "destroy forget update");
    assert_eq!(shown(&VdiFacts { sr_attached: false, ..vdi() }), "forget");
}
