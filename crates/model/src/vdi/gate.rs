//! Gate of operations on a disk.

use super::automaton::Access;
use super::{VdiFacts, VdiOp};
use crate::refusal::{OngoingOp, Refusal};
use crate::sr::SrFeature;

/// Checks whether `op` may begin on `vdi`.
///
/// The first matching rule refuses, in this order: running operations; the storage repository;
/// slots that use the disk; their operations; a disk that is missing or read-only; operations that
/// Ringway does not implement; features that the type of storage does not have.
///
/// # Errors
/// The first refusal.
pub fn check(op: VdiOp, vdi: &VdiFacts) -> Result<(), Refusal> {
    if let Some(other) = vdi.current.iter().find(|other| !beside(op, **other)) {
        return Refusal::beside(OngoingOp::Vdi(*other));
    }
    if !vdi.sr_attached && op != VdiOp::Forget {
        return Err(Refusal::SrNotAttached);
    }
    if !is_live(op) {
        let reads = op == VdiOp::Copy;
        let hinders = |access| !reads || access == Access::Rw;
        if vdi.users.iter().any(|user| user.attached && hinders(user.access)) {
            return Err(Refusal::VdiInUse);
        }
    }
    if let Some(other) = vdi.users.iter().find_map(|user| user.op) {
        return Refusal::beside(OngoingOp::Vbd(other));
    }
    // A missing disk can only be removed or updated.
    if vdi.missing && !matches!(op, VdiOp::Forget | VdiOp::Destroy | VdiOp::Update) {
        return Err(Refusal::VdiMissing);
    }
    if vdi.read_only && changes(op) {
        return Err(Refusal::VdiReadOnly);
    }
    if !is_served(op) {
        return Err(Refusal::NotImplemented);
    }
    let is_lacking = feature(op).is_some_and(|feature| vdi.lacks.contains(&feature));
    if is_lacking { Err(Refusal::Unsupported) } else { Ok(()) }
}

/// Returns the feature of the storage repository that the operation needs.
fn feature(op: VdiOp) -> Option<SrFeature> {
    match op {
        VdiOp::Clone => Some(SrFeature::VdiClone),
        VdiOp::Snapshot => Some(SrFeature::VdiSnapshot),
        VdiOp::Resize | VdiOp::ResizeOnline => Some(SrFeature::VdiResize),
        VdiOp::Destroy => Some(SrFeature::VdiDelete),
        VdiOp::SetOnBoot => Some(SrFeature::VdiResetOnBoot),
        _ => None,
    }
}

/// Returns the operations that a client may see as possible now, in the order of [`VdiOp::ALL`].
pub fn allowed(vdi: &VdiFacts) -> Vec<VdiOp> {
    VdiOp::ALL.iter().copied().filter(|op| check(*op, vdi).is_ok()).collect()
}

/// Returns whether `op` may begin while `other` runs: a reading operation may run with a copy.
fn beside(op: VdiOp, other: VdiOp) -> bool {
    other == VdiOp::Copy
        && matches!(op, VdiOp::Copy | VdiOp::Clone | VdiOp::Snapshot | VdiOp::ListChangedBlocks)
}

/// Returns whether the operation is possible on a plugged disk.
fn is_live(op: VdiOp) -> bool {
    matches!(
        op,
        VdiOp::Snapshot
            | VdiOp::Clone
            | VdiOp::ResizeOnline
            | VdiOp::Mirror
            | VdiOp::EnableCbt
            | VdiOp::DisableCbt
            | VdiOp::DataDestroy
            | VdiOp::Blocked
    )
}

/// Returns whether the operation changes the content.
fn changes(op: VdiOp) -> bool {
    matches!(op, VdiOp::Resize | VdiOp::ResizeOnline | VdiOp::DataDestroy | VdiOp::SetOnBoot)
}

/// Returns whether Ringway implements the operation.
fn is_served(op: VdiOp) -> bool {
    matches!(
        op,
        VdiOp::Clone
            | VdiOp::Copy
            | VdiOp::Snapshot
            | VdiOp::Resize
            | VdiOp::ResizeOnline
            | VdiOp::Destroy
            | VdiOp::Forget
            | VdiOp::Update
            | VdiOp::SetOnBoot
    )
}

#[cfg(test)]
mod tests;
