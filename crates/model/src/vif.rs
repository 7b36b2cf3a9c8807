//! A machine's network interfaces: what can be done to them, what they may do, and their numbers.

mod limits;

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::pci::MAX_VIFS;
use crate::nic::MAX_PAIRS;
use crate::refusal::{Feature, OngoingOp, Refusal};
use crate::vbd::no_such_device;
use crate::vm::{PowerState, Strictness, VmFacts, check_device};
use crate::wire_names::named;
pub use limits::{FLOOD_LIMIT, LockingMode, VifSettings, check_limits, limits};

/// Highest number of an interface: a machine has 7.
pub const MAX_DEVICE: u8 = MAX_VIFS - 1;

/// Most pairs of queues of an interface: the queue of commands takes the place of one.
pub const MAX_QUEUES: u16 = MAX_PAIRS - 1;

named! {
    /// What can be done to a network interface.
    VifOp {
        /// Take part in the start of its machine.
        Attach = "attach",
        /// Give it to a running machine.
        Plug = "plug",
        /// Ask a running machine to give it back.
        Unplug = "unplug",
    }
}

/// Everything that a gate reads of one network interface, beside its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VifFacts {
    /// It is plugged, or about to be.
    pub attached: bool,
    /// Operations under way.
    pub current: Vec<VifOp>,
}

/// Whether `op` may begin on `vif` of `vm`.
///
/// The first that applies refuses, in this order: an operation under way; the power state, with
/// what is attached or detached already; operations of the machine; what the guest can do; the
/// control domain.
///
/// # Errors
/// The first refusal.
pub fn check(op: VifOp, vif: &VifFacts, vm: &VmFacts, how: Strictness) -> Result<(), Refusal> {
    if let Some(other) = vif.current.first() {
        return Refusal::beside(OngoingOp::Vif(*other));
    }
    if op != VifOp::Attach {
        if vm.power != PowerState::Running {
            let expected = &[PowerState::Running];
            return Err(Refusal::BadPowerState { expected, actual: vm.power });
        }
        match (op, vif.attached) {
            (VifOp::Plug, true) => return Err(Refusal::AlreadyAttached),
            (VifOp::Unplug, false) => return Err(Refusal::AlreadyDetached),
            _ => check_device(vm, Feature::HotplugVif, vm.guest.hotplug_vif, how)?,
        }
    }
    if vm.is_control_domain { Err(Refusal::IsControlDomain) } else { Ok(()) }
}

/// What a client may be shown as possible now, in the order of [`VifOp::ALL`].
pub fn allowed(vif: &VifFacts, vm: &VmFacts) -> Vec<VifOp> {
    let all = VifOp::ALL.iter().copied();
    all.filter(|op| check(*op, vif, vm, Strictness::Strict).is_ok()).collect()
}

/// The number for a new interface that asks for `wanted`: a number, or `autodetect`, which takes
/// the lowest that is free.
///
/// # Errors
/// [`Refusal::DeviceTaken`]; [`Refusal::NoSuchDevice`] for what is no number of an interface and
/// when none is free.
pub fn choose(wanted: &str, used: &BTreeSet<u8>) -> Result<u8, Refusal> {
    let found = (0..=MAX_DEVICE).find(|number| match wanted {
        "autodetect" => !used.contains(number),
        _ => wanted == number.to_string(),
    });
    match found {
        None => Err(no_such_device(wanted)),
        Some(number) if used.contains(&number) => Err(Refusal::DeviceTaken(number)),
        Some(number) => Ok(number),
    }
}

/// Pairs of queues that `other_config` asks for by the key `queues`. Nobody can be told that it is wrong,
/// so what makes no sense has no effect.
pub fn queues(other_config: &BTreeMap<String, String>) -> Option<u16> {
    let asked = other_config.get("queues")?.parse().ok();
    asked.filter(|queues| (1..=MAX_QUEUES).contains(queues))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{GuestFeatures, Tristate, VmOp};

    fn running() -> VmFacts {
        VmFacts::new(PowerState::Running)
    }

    /// Every operation, on every state of machine and interface.
    #[test]
    fn plugged_while_running_attached_at_any_time() {
        for &power in PowerState::ALL {
            for attached in [false, true] {
                let (vm, vif) = (VmFacts::new(power), VifFacts { attached, current: vec![] });
                let ask = |op| check(op, &vif, &vm, Strictness::Lenient);
                assert_eq!(ask(VifOp::Attach), Ok(()));
                let [plug, unplug] = match (power, attached) {
                    (PowerState::Running, true) => [Err(Refusal::AlreadyAttached), Ok(())],
                    (PowerState::Running, false) => [Ok(()), Err(Refusal::AlreadyDetached)],
                    (actual, _) => {
                        let expected = &[PowerState::Running];
                        let bad = Err(Refusal::BadPowerState { expected, actual });
                        [bad.clone(), bad]
                    }
                };
                assert_eq!((ask(VifOp::Plug), ask(VifOp::Unplug)), (plug, unplug));
            }
        }
    }

    #[test]
    fn one_operation_at_a_time() {
        for &op in VifOp::ALL {
            for &other in VifOp::ALL {
                let busy = VifFacts { attached: op == VifOp::Unplug, current: vec![other] };
                let refusal = Refusal::beside(OngoingOp::Vif(other));
                assert_eq!(check(op, &busy, &running(), Strictness::Lenient), refusal);
            }
        }
    }

    #[test]
    fn a_guest_that_has_not_spoken_is_tried_but_not_advertised() {
        let vif = VifFacts::default();
        let silent = running();
        assert_eq!(check(VifOp::Plug, &vif, &silent, Strictness::Lenient), Ok(()));
        assert_eq!(allowed(&vif, &silent), [VifOp::Attach]);
        let guest = GuestFeatures { hotplug_vif: Tristate::Yes, ..GuestFeatures::default() };
        let able = VmFacts { guest, ..running() };
        assert_eq!(allowed(&vif, &able), [VifOp::Attach, VifOp::Plug]);
        let guest = GuestFeatures { hotplug_vif: Tristate::No, ..GuestFeatures::default() };
        let unable = VmFacts { guest, ..running() };
        let refusal = Err(Refusal::LacksFeature(Feature::HotplugVif));
        assert_eq!(check(VifOp::Plug, &vif, &unable, Strictness::Lenient), refusal);
    }

    #[test]
    fn not_while_the_machine_shuts_down_and_never_for_the_host() {
        let vif = VifFacts { attached: true, current: vec![] };
        let ending = VmFacts { current: vec![VmOp::CleanShutdown], ..running() };
        let refusal = Refusal::beside(OngoingOp::Vm(VmOp::CleanShutdown));
        assert_eq!(check(VifOp::Unplug, &vif, &ending, Strictness::Lenient), refusal);
        let host = VmFacts { is_control_domain: true, ..running() };
        for op in [VifOp::Attach, VifOp::Unplug] {
            let said = check(op, &vif, &host, Strictness::Lenient);
            assert_eq!(said, Err(Refusal::IsControlDomain));
        }
    }

    #[test]
    fn queues_are_those_that_can_be_had() {
        let asked = |text: &str| queues(&BTreeMap::from([("queues".into(), text.into())]));
        assert_eq!((asked("1"), asked("127")), (Some(1), Some(127)));
        for none in ["0", "128", "-1", "two", ""] {
            assert_eq!(asked(none), None, "{none}");
        }
        assert_eq!(queues(&BTreeMap::new()), None);
    }

    #[test]
    fn seven_numbers() {
        let mut used = BTreeSet::new();
        for expected in 0..7 {
            assert_eq!(choose("autodetect", &used), Ok(expected));
            assert_eq!(choose(&expected.to_string(), &used), Ok(expected));
            used.insert(expected);
            assert_eq!(choose(&expected.to_string(), &used), Err(Refusal::DeviceTaken(expected)));
        }
        for bad in ["autodetect", "7", "-1", "", "00", "eth0", "1 "] {
            assert_eq!(choose(bad, &used), Err(Refusal::NoSuchDevice(bad.into())));
        }
    }
}
