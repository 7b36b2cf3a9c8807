//! Whether an operation on a machine may begin.

mod table;

use super::facts::{GuestFeatures, Strictness, Tristate, VmFacts};
use super::{PowerState, VmOp};
use crate::refusal::{Feature, OngoingOp, Refusal};
use table::{is_for_snapshot, is_for_template, is_offered, is_served};

pub use table::power_states;

/// Whether `op` may begin on `vm`.
///
/// The first that applies refuses, in this order: a block that somebody has set; the power state;
/// operations under way; what templates, then snapshots, are not for; what only they are for; the
/// control domain; what the guest can do; what Ringway does not do.
///
/// # Errors
/// The first refusal.
pub fn check(op: VmOp, vm: &VmFacts, how: Strictness) -> Result<(), Refusal> {
    if let Some(reason) = vm.blocked.get(&op) {
        return Err(Refusal::Blocked { reason: reason.clone() });
    }
    let expected = power_states(op, vm.is_snapshot);
    if !expected.contains(&vm.power) {
        return Err(Refusal::BadPowerState { expected, actual: vm.power });
    }
    if let Some(other) = conflict(op, &vm.current) {
        return Refusal::beside(OngoingOp::Vm(other));
    }
    check_kind(op, vm)?;
    if vm.power == PowerState::Running && matches!(op, VmOp::CleanShutdown | VmOp::CleanReboot) {
        check_shutdown(vm.guest, how)?;
    }
    if is_served(op, vm.power) { Ok(()) } else { Err(Refusal::NotImplemented) }
}

/// What a client may be shown as possible now: the operations that it can call for, as far as the
/// guest has said that it can do them. In the order of [`VmOp::ALL`].
pub fn allowed(vm: &VmFacts) -> Vec<VmOp> {
    let offered = VmOp::ALL.iter().copied().filter(|op| is_offered(*op));
    offered.filter(|op| check(*op, vm, Strictness::Strict).is_ok()).collect()
}

/// The first operation under way that `op` cannot run beside.
fn conflict(op: VmOp, current: &[VmOp]) -> Option<VmOp> {
    current.iter().copied().find(|other| !beside(op, *other, current.len()))
}

/// Whether `op` may begin while `other` runs, as one of `running`.
fn beside(op: VmOp, other: VmOp, running: usize) -> bool {
    let both = |of: &[VmOp]| of.contains(&op) && of.contains(&other);
    match (op, other) {
        // They end whatever hangs, and what they end sees it.
        (VmOp::HardShutdown, _) => other != VmOp::HardShutdown,
        (VmOp::HardReboot, _) => !matches!(other, VmOp::HardShutdown | VmOp::HardReboot),
        // These look, and change nothing.
        (VmOp::AssertOperationValid | VmOp::UpdateAllowedOperations, _) => true,
        (VmOp::Snapshot, VmOp::SnapshotWithQuiesce) => running == 1,
        // A migration asks for these itself.
        (
            VmOp::MetadataExport
            | VmOp::CleanShutdown
            | VmOp::CleanReboot
            | VmOp::Start
            | VmOp::StartOn,
            VmOp::MigrateSend,
        ) => running == 1,
        _ => {
            both(&[VmOp::Clone, VmOp::Copy, VmOp::Export])
                || both(&[VmOp::Snapshot, VmOp::Checkpoint])
                || both(&[VmOp::GetBootRecord])
        }
    }
}

/// Refuses what is not done to this kind of machine.
fn check_kind(op: VmOp, vm: &VmFacts) -> Result<(), Refusal> {
    if vm.is_template && !vm.is_snapshot && !is_for_template(op, vm.is_default_template) {
        return Err(Refusal::IsTemplate);
    }
    if vm.is_snapshot && !is_for_snapshot(op) {
        return Err(Refusal::IsSnapshot);
    }
    if op == VmOp::Provision && !vm.is_template {
        return Err(Refusal::NotTemplate);
    }
    if op == VmOp::Revert && !vm.is_snapshot {
        return Err(Refusal::NotSnapshot);
    }
    let looks = matches!(
        op,
        VmOp::AssertOperationValid
            | VmOp::UpdateAllowedOperations
            | VmOp::DataSourceOp
            | VmOp::MetadataExport
    );
    if vm.is_control_domain && !looks {
        return Err(Refusal::IsControlDomain);
    }
    Ok(())
}

/// Refuses to ask a guest for its end that cannot be asked.
fn check_shutdown(guest: GuestFeatures, how: Strictness) -> Result<(), Refusal> {
    let can = match (guest.shutdown, guest.drivers, how) {
        (Tristate::Yes, _, _) | (Tristate::Unknown, Tristate::Yes, _) => true,
        (Tristate::No, _, _) => false,
        // The power button needs no driver of ours: it is pressed.
        (Tristate::Unknown, _, how) => how == Strictness::Lenient,
    };
    if can { Ok(()) } else { Err(Refusal::LacksFeature(Feature::Shutdown)) }
}

/// Whether a device of `vm` may be plugged or unplugged now, as far as the machine goes: it is not
/// about to end or to stand still, and its guest can do it. `said` is what the guest has said of
/// this feature.
pub(crate) fn check_device(
    vm: &VmFacts,
    feature: Feature,
    said: Tristate,
    how: Strictness,
) -> Result<(), Refusal> {
    if let Some(op) = vm.current.iter().find(|op| takes_devices(**op)) {
        return Refusal::beside(OngoingOp::Vm(*op));
    }
    match (said, vm.guest.drivers, how) {
        (Tristate::Yes, _, _) | (Tristate::Unknown, Tristate::Yes, _) => Ok(()),
        (Tristate::No, _, _) => Err(Refusal::LacksFeature(feature)),
        (Tristate::Unknown, Tristate::Unknown, Strictness::Lenient) => Ok(()),
        (Tristate::Unknown, _, _) => Err(Refusal::MissingDrivers),
    }
}

/// Whether it plugs or unplugs devices itself, or keeps the guest from doing its part.
fn takes_devices(op: VmOp) -> bool {
    matches!(
        op,
        VmOp::CleanShutdown
            | VmOp::Shutdown
            | VmOp::HardShutdown
            | VmOp::CleanReboot
            | VmOp::HardReboot
            | VmOp::Start
            | VmOp::StartOn
            | VmOp::Resume
            | VmOp::ResumeOn
            | VmOp::Suspend
            | VmOp::Checkpoint
            | VmOp::Pause
            | VmOp::PoolMigrate
            | VmOp::MigrateSend
            | VmOp::PowerStateReset
    )
}

#[cfg(test)]
mod tests;
