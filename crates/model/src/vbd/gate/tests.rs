//! Tests of all operations on all kinds and states of slots, and of disks with other users.

use super::*;
use crate::vdi::VdiUser;
use crate::vm::Strictness::{Lenient, Strict};
use crate::vm::{GuestFeatures, Tristate, VmOp};

fn vm(power: PowerState) -> VmFacts {
    let guest = GuestFeatures { drivers: Tristate::Yes, ..GuestFeatures::default() };
    VmFacts { guest, ..VmFacts::new(power) }
}

fn running() -> VmFacts {
    vm(PowerState::Running)
}

fn vdi() -> VdiFacts {
    VdiFacts { sr_attached: true, ..VdiFacts::default() }
}

/// Returns a slot with a writable, unplugged disk.
fn slot(kind: VbdKind) -> VbdFacts {
    VbdFacts {
        kind,
        mode: Access::Rw,
        attached: false,
        unpluggable: true,
        current: vec![],
        empty: false,
        vdi: Some(vdi()),
    }
}

fn names(vbd: &VbdFacts, vm: &VmFacts) -> String {
    allowed(vbd, vm).iter().map(|op| op.name()).collect::<Vec<_>>().join(" ")
}

/// Tests the allowed operations by kind, power state, attached and empty.
#[test]
fn each_kind_in_each_state() {
    use PowerState::{Halted, Paused, Running, Suspended};
    for (kind, power, attached, empty, expected) in [
        (VbdKind::Disk, Halted, false, false, "attach"),
        (VbdKind::Disk, Paused, true, false, "attach"),
        (VbdKind::Disk, Running, false, false, "attach plug"),
        (VbdKind::Disk, Running, true, false, "attach unplug unplug_force"),
        (VbdKind::Disk, Suspended, true, false, "attach"),
        (VbdKind::Cd, Halted, false, true, "attach insert"),
        (VbdKind::Cd, Halted, false, false, "attach eject"),
        (VbdKind::Cd, Paused, true, true, "attach insert"),
        (VbdKind::Cd, Paused, true, false, "attach eject"),
        (VbdKind::Cd, Running, true, true, "attach insert"),
        (VbdKind::Cd, Running, true, false, "attach eject"),
        (VbdKind::Cd, Running, false, false, "attach eject"),
        (VbdKind::Cd, Suspended, true, true, "attach"),
        (VbdKind::Cd, Suspended, true, false, "attach"),
        (VbdKind::Floppy, Halted, false, false, ""),
        (VbdKind::Floppy, Running, true, false, "unplug unplug_force"),
    ] {
        let vdi = (!empty).then(vdi);
        let mode = if kind == VbdKind::Cd { Access::Ro } else { Access::Rw };
        let vbd = VbdFacts { mode, attached, empty, vdi, ..slot(kind) };
        assert_eq!(names(&vbd, &vm(power)), expected, "{kind:?} {power:?} {attached} {empty}");
    }
}

/// Tests the refusal of each impossible operation in each power state.
#[test]
fn each_operation_of_a_disk_in_each_power_state() {
    for &op in VbdOp::ALL {
        for &power in PowerState::ALL {
            for attached in [false, true] {
                let vbd = VbdFacts { attached, ..slot(VbdKind::Disk) };
                let needs: &[PowerState] = match op {
                    VbdOp::Pause | VbdOp::Unpause => &[PowerState::Paused, PowerState::Running],
                    _ => &[PowerState::Running],
                };
                let away = !needs.contains(&power);
                let expected = match op {
                    VbdOp::Attach => Ok(()),
                    VbdOp::Insert | VbdOp::Eject => Err(Refusal::NotRemovable),
                    _ if away => Err(Refusal::BadPowerState { expected: needs, actual: power }),
                    VbdOp::Plug if attached => Err(Refusal::AlreadyAttached),
                    VbdOp::Unplug | VbdOp::UnplugForce if !attached => {
                        Err(Refusal::AlreadyDetached)
                    }
                    VbdOp::Pause | VbdOp::Unpause => Err(Refusal::NotImplemented),
                    _ => Ok(()),
                };
                assert_eq!(check(op, &vbd, &vm(power), Lenient), expected, "{op:?} {power:?}");
            }
        }
    }
}

#[test]
fn one_operation_at_a_time() {
    for &op in VbdOp::ALL {
        for &other in VbdOp::ALL {
            let busy = VbdFacts { current: vec![other], ..slot(VbdKind::Disk) };
            let refusal = Refusal::beside(OngoingOp::Vbd(other));
            assert_eq!(check(op, &busy, &running(), Lenient), refusal);
        }
    }
}

/// Tests every operation of the slot with every running operation of the machine.
#[test]
fn no_plugging_while_the_machine_plugs_ends_or_stands_still() {
    let refusing = "clean_shutdown shutdown hard_shutdown clean_reboot hard_reboot start start_on \
                    resume resume_on suspend checkpoint pause pool_migrate migrate_send \
                    power_state_reset";
    for &other in VmOp::ALL {
        let refuses = refusing.split_whitespace().any(|name| name == other.name());
        let vm = VmFacts { current: vec![other], ..running() };
        for (op, attached) in
            [(VbdOp::Plug, false), (VbdOp::Unplug, true), (VbdOp::UnplugForce, true)]
        {
            let vbd = VbdFacts { attached, ..slot(VbdKind::Disk) };
            let expected = if refuses { Refusal::beside(OngoingOp::Vm(other)) } else { Ok(()) };
            assert_eq!(check(op, &vbd, &vm, Lenient), expected, "{op:?} beside {other:?}");
        }
        assert_eq!(check(VbdOp::Attach, &slot(VbdKind::Disk), &vm, Lenient), Ok(()));
    }
}

/// Tests all combinations of reported guest features.
#[test]
fn a_guest_takes_disks_unless_it_has_denied_that() {
    for drivers in Tristate::ALL {
        for hotplug_vbd in Tristate::ALL {
            let guest = GuestFeatures { drivers, hotplug_vbd, ..GuestFeatures::default() };
            let vm = VmFacts { guest, ..running() };
            let [strict, lenient] = match (hotplug_vbd, drivers) {
                (Tristate::Yes, _) | (Tristate::Unknown, Tristate::Yes) => [Ok(()), Ok(())],
                (Tristate::No, _) => {
                    let lacks = Err(Refusal::LacksFeature(Feature::HotplugVbd));
                    [lacks.clone(), lacks]
                }
                (Tristate::Unknown, Tristate::No) => {
                    [Err(Refusal::MissingDrivers), Err(Refusal::MissingDrivers)]
                }
                (Tristate::Unknown, Tristate::Unknown) => [Err(Refusal::MissingDrivers), Ok(())],
            };
            let vbd = slot(VbdKind::Disk);
            assert_eq!(check(VbdOp::Plug, &vbd, &vm, Strict), strict, "{guest:?}");
            assert_eq!(check(VbdOp::Plug, &vbd, &vm, Lenient), lenient, "{guest:?}");
        }
    }
}

#[test]
fn the_first_of_two_violations_is_told() {
    type Violate = fn(&mut VbdFacts, &mut VmFacts);
    let expected = &[PowerState::Running];
    let order: [(Violate, Refusal); 8] = [
        (
            |vbd, _| vbd.current.push(VbdOp::Eject),
            Refusal::OtherOperation { op: OngoingOp::Vbd(VbdOp::Eject) },
        ),
        (
            |_, vm| vm.power = PowerState::Paused,
            Refusal::BadPowerState { expected, actual: PowerState::Paused },
        ),
        (
            |_, vm| vm.current.push(VmOp::Pause),
            Refusal::OtherOperation { op: OngoingOp::Vm(VmOp::Pause) },
        ),
        (|_, vm| vm.guest.hotplug_vbd = Tristate::No, Refusal::LacksFeature(Feature::HotplugVbd)),
        (|_, vm| vm.is_control_domain = true, Refusal::IsControlDomain),
        (|vbd, _| vbd.vdi.as_mut().unwrap().missing = true, Refusal::VdiMissing),
        (|vbd, _| vbd.vdi.as_mut().unwrap().sr_attached = false, Refusal::SrNotAttached),
        (|vbd, _| vbd.vdi.as_mut().unwrap().read_only = true, Refusal::VdiReadOnly),
    ];
    for (first, (break_it, refusal)) in order.iter().enumerate() {
        for (also, _) in &order[first..] {
            let (mut vbd, mut vm) = (slot(VbdKind::Disk), running());
            break_it(&mut vbd, &mut vm);
            also(&mut vbd, &mut vm);
            assert_eq!(check(VbdOp::Plug, &vbd, &vm, Lenient), Err(refusal.clone()));
        }
    }
}

#[test]
fn drives_and_disks_that_stay() {
    let cd = VbdFacts { mode: Access::Ro, ..slot(VbdKind::Cd) };
    let plug = check(VbdOp::Plug, &cd, &running(), Lenient);
    assert!(matches!(plug, Err(Refusal::NotAllowed(why)) if why.contains("insert and eject")));
    assert_eq!(check(VbdOp::Insert, &cd, &running(), Lenient), Err(Refusal::NotEmpty));
    let empty = VbdFacts { empty: true, vdi: None, ..cd };
    assert_eq!(check(VbdOp::Eject, &empty, &running(), Lenient), Err(Refusal::Empty));
    let stays = VbdFacts { unpluggable: false, attached: true, ..slot(VbdKind::Disk) };
    for op in [VbdOp::Unplug, VbdOp::UnplugForce] {
        assert_eq!(check(op, &stays, &running(), Lenient), Err(Refusal::NotUnpluggable));
    }
    let floppy = slot(VbdKind::Floppy);
    assert_eq!(check(VbdOp::Attach, &floppy, &running(), Lenient), Err(Refusal::NotImplemented));
}

/// Tests all ways in which another slot can use the disk.
#[test]
fn a_disk_has_one_writer_or_many_readers_unless_it_is_sharable() {
    for sharable in [false, true] {
        for &mode in Access::ALL {
            for &access in Access::ALL {
                for attached in [false, true] {
                    for op in [None, Some(VbdOp::Attach)] {
                        for &power in PowerState::ALL {
                            let user = VdiUser { access, attached, op, vm: power };
                            let vdi = VdiFacts { sharable, users: vec![user], ..vdi() };
                            let vbd = VbdFacts { mode, vdi: Some(vdi), ..slot(VbdKind::Disk) };
                            let held = (attached || op.is_some()) && power.name() != "Suspended";
                            let writes = [mode, access].contains(&Access::Rw);
                            let taken = held && writes && !sharable;
                            let expected = if taken { Err(Refusal::VdiInUse) } else { Ok(()) };
                            for op in [VbdOp::Attach, VbdOp::Plug] {
                                assert_eq!(check(op, &vbd, &running(), Lenient), expected);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_reader_beside_readers_is_refused_by_the_one_that_writes() {
    let user = |access| VdiUser { access, attached: true, op: None, vm: PowerState::Running };
    let users = vec![user(Access::Ro), user(Access::Ro), user(Access::Rw)];
    let held = VdiFacts { users, ..vdi() };
    let reader = VbdFacts { mode: Access::Ro, vdi: Some(held.clone()), ..slot(VbdKind::Disk) };
    assert_eq!(check(VbdOp::Plug, &reader, &running(), Lenient), Err(Refusal::VdiInUse));
    let users = held.users[..2].to_vec();
    let read = VbdFacts { vdi: Some(VdiFacts { users, ..vdi() }), ..reader };
    assert_eq!(check(VbdOp::Plug, &read, &running(), Lenient), Ok(()));
    // A read-only disk can be read, but not inserted for writing.
    let fixed = VdiFacts { read_only: true, ..vdi() };
    let cd = VbdFacts { mode: Access::Ro, empty: true, vdi: Some(fixed), ..slot(VbdKind::Cd) };
    assert_eq!(check(VbdOp::Insert, &cd, &running(), Lenient), Ok(()));
    // A plugged drive does not imply that the new medium is in use.
    let plugged = VbdFacts { attached: true, vdi: Some(held), ..cd.clone() };
    assert_eq!(check(VbdOp::Insert, &plugged, &running(), Lenient), Err(Refusal::VdiInUse));
    let written = VbdFacts { mode: Access::Rw, ..cd };
    assert_eq!(check(VbdOp::Insert, &written, &running(), Lenient), Err(Refusal::VdiReadOnly));
}

/// Tests every running operation of the disk with every operation that begins or ends its use.
#[test]
fn the_disks_own_operations_come_first() {
    for &other in VdiOp::ALL {
        let vdi = VdiFacts { current: vec![other], ..vdi() };
        let vbd = VbdFacts { vdi: Some(vdi), ..slot(VbdKind::Disk) };
        let reads = ["copy", "mirror"].contains(&other.name());
        let expected = if reads { Ok(()) } else { Refusal::beside(OngoingOp::Vdi(other)) };
        for op in [VbdOp::Attach, VbdOp::Plug] {
            assert_eq!(check(op, &vbd, &running(), Lenient), expected, "{other:?}");
        }
        let plugged = VbdFacts { attached: true, ..vbd };
        assert_eq!(check(VbdOp::Unplug, &plugged, &running(), Lenient), Ok(()));
    }
}
