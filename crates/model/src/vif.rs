//! Network interfaces of a machine: their operations, limits and numbers.

mod limits;

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::pci::MAX_VIFS;
use crate::nic::MAX_PAIRS;
use crate::refusal::{Feature, OngoingOp, Refusal};
use crate::vbd::no_such_device;
use crate::vm::{PowerState, Strictness, VmFacts, check_device};
use crate::wire_names::named;
pub use limits::{FLOOD_LIMIT, LockingMode, VifSettings, check_limits, limits};

/// Highest device number of an interface: a machine has 7.
pub const MAX_DEVICE: u8 = MAX_VIFS - 1;

/// Maximum number of queue pairs of an interface: the control queue takes the place of one.
pub const MAX_QUEUES: u16 = MAX_PAIRS - 1;

named! {
    /// Operation on a network interface.
    VifOp {
        /// Take part in the start of the machine.
        Attach = "attach",
        /// Plug it into a running machine.
        Plug = "plug",
        /// Unplug it from a running machine.
        Unplug = "unplug",
    }
}

/// Facts about one network interface that its gate reads, apart from its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VifFacts {
    /// Whether it is plugged, or about to be.
    pub attached: bool,
    /// Running operations.
    pub current: Vec<VifOp>,
}

/// Checks whether `op` may begin on `vif` of `vm`.
///
/// The first matching rule refuses, in this order: a running operation; the power state, and
/// whether the interface is attached or detached already; operations of the machine; guest
/// features; the control domain.
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

/// Returns the operations that a client may see as possible now, in the order of [`VifOp::ALL`].
pub fn allowed(vif: &VifFacts, vm: &VmFacts) -> Vec<VifOp> {
    let all = VifOp::ALL.iter().copied();
    all.filter(|op| check(*op, vif, vm, Strictness::Strict).is_ok()).collect()
}

/// Returns the number for a new interface from `wanted`: a number, or `autodetect` for the lowest
/// free one.
///
/// # Errors
/// [`Refusal::DeviceTaken`]; [`Refusal::NoSuchDevice`] if `wanted` is not an interface number, or
/// if none is free.
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

/// Key of `other_config` for the number of queue pairs.
pub const QUEUES: &str = "queues";

/// Returns the number of queue pairs from the key `queues` of `other_config`. An invalid value,
/// stored before calls checked it, has no effect.
pub fn queues(other_config: &BTreeMap<String, String>) -> Option<u16> {
    parse_queues(other_config.get(QUEUES)?)
}

fn parse_queues(text: &str) -> Option<u16> {
    text.parse().ok().filter(|queues| (1..=MAX_QUEUES).contains(queues))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{GuestFeatures, Tristate, VmOp};

    fn running() -> VmFacts {
        VmFacts::new(PowerState::Running)
    }

    /// Tests every operation on every state of machine and interface.
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
            let result = check(op, &vif, &host, Strictness::Lenient);
            assert_eq!(result, Err(Refusal::IsControlDomain));
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
