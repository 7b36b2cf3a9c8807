//! Storage repositories: their operations and the gate.

use crate::refusal::{OngoingOp, Refusal};
use crate::wire_names::named;

named! {
    /// Operation on a storage repository.
    SrOp {
        /// List its disks.
        Scan = "scan",
        /// Remove it with its disks.
        Destroy = "destroy",
        /// Remove its record but not its disks.
        Forget = "forget",
        /// Attach it to a host.
        Plug = "plug",
        /// Detach it from a host.
        Unplug = "unplug",
        /// Read its properties again.
        Update = "update",
        /// Create a disk.
        VdiCreate = "vdi_create",
        /// Record an existing disk.
        VdiIntroduce = "vdi_introduce",
        /// Remove a disk.
        VdiDestroy = "vdi_destroy",
        /// Change the size of a disk.
        VdiResize = "vdi_resize",
        /// Clone a disk.
        VdiClone = "vdi_clone",
        /// Snapshot a disk.
        VdiSnapshot = "vdi_snapshot",
        /// Mirror a disk.
        VdiMirror = "vdi_mirror",
        /// Enable changed block tracking of a disk.
        VdiEnableCbt = "vdi_enable_cbt",
        /// Disable changed block tracking of a disk.
        VdiDisableCbt = "vdi_disable_cbt",
        /// Remove the content of a disk.
        VdiDataDestroy = "vdi_data_destroy",
        /// List the changed blocks of a disk.
        VdiListChangedBlocks = "vdi_list_changed_blocks",
        /// Set whether a disk is reset at boot.
        VdiSetOnBoot = "vdi_set_on_boot",
        /// Connect a host with it.
        PbdCreate = "pbd_create",
        /// Disconnect a host from it.
        PbdDestroy = "pbd_destroy",
    }
}

named! {
    /// Ability of a type of storage repositories.
    SrFeature {
        /// Create a disk.
        VdiCreate = "VDI_CREATE",
        /// Remove a disk with its content.
        VdiDelete = "VDI_DELETE",
        /// Attach a disk.
        VdiAttach = "VDI_ATTACH",
        /// Detach a disk.
        VdiDetach = "VDI_DETACH",
        /// Prepare reads and writes of a disk.
        VdiActivate = "VDI_ACTIVATE",
        /// End reads and writes of a disk.
        VdiDeactivate = "VDI_DEACTIVATE",
        /// Clone a disk.
        VdiClone = "VDI_CLONE",
        /// Snapshot a disk.
        VdiSnapshot = "VDI_SNAPSHOT",
        /// Change the size of a disk.
        VdiResize = "VDI_RESIZE",
        /// Reset a disk when its machine boots.
        VdiResetOnBoot = "VDI_RESET_ON_BOOT",
    }
}

impl SrFeature {
    /// Features of storage that is only read.
    pub const OF_READERS: &'static [Self] =
        &[Self::VdiAttach, Self::VdiDetach, Self::VdiActivate, Self::VdiDeactivate];

    /// Returns the version of the feature's interface.
    pub fn version(self) -> u32 {
        // Version 2 keeps nothing of the last boot.
        if self == Self::VdiResetOnBoot { 2 } else { 1 }
    }

    /// Returns the feature as `SM.capabilities` has it: versions after the first one are named.
    pub fn capability(self) -> String {
        match self.version() {
            1 => self.name().to_owned(),
            version => format!("{}/{version}", self.name()),
        }
    }
}

/// Facts about one storage repository that its gate reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SrFacts {
    /// Whether a PBD connects a host with it.
    pub has_pbd: bool,
    /// Whether it is attached to that host.
    pub attached: bool,
    /// Whether it contains disks.
    pub has_vdi: bool,
    /// Whether one of its disks is plugged into a machine, or about to be. Not computed for lists
    /// of allowed operations, because an SR has very many disks.
    pub in_use: bool,
    /// Running operations.
    pub current: Vec<SrOp>,
    /// Features that its type does not have.
    pub lacks: Vec<SrFeature>,
}

/// Checks whether `op` may begin on `sr`.
///
/// The first matching rule refuses, in this order: operations that Ringway does not implement;
/// features that the type does not have; attachment and use; content; running operations. Operations on single disks run concurrently.
/// Every other operation runs alone.
///
/// # Errors
/// The first refusal.
pub fn check(op: SrOp, sr: &SrFacts) -> Result<(), Refusal> {
    if !is_served(op) {
        return Err(Refusal::NotImplemented);
    }
    if feature(op).is_some_and(|feature| sr.lacks.contains(&feature)) {
        return Err(Refusal::Unsupported);
    }
    match op {
        SrOp::Destroy | SrOp::Forget if sr.attached => return Err(Refusal::SrAttached),
        SrOp::Destroy | SrOp::Plug | SrOp::Unplug | SrOp::PbdDestroy if !sr.has_pbd => {
            return Err(Refusal::SrNoPbd);
        }
        SrOp::Destroy if sr.has_vdi => return Err(Refusal::SrNotEmpty),
        SrOp::Unplug | SrOp::Destroy | SrOp::Forget if sr.in_use => return Err(Refusal::VdiInUse),
        SrOp::PbdDestroy if sr.attached => return Err(Refusal::SrAttached),
        SrOp::Scan | SrOp::Update if !sr.attached => return Err(Refusal::SrNotAttached),
        _ if is_of_disk(op) && !sr.attached => return Err(Refusal::SrNotAttached),
        _ => {}
    }
    let alone = |other: &&SrOp| !(is_of_disk(op) && is_of_disk(**other));
    match sr.current.iter().find(alone) {
        Some(other) => Refusal::beside(OngoingOp::Sr(*other)),
        None => Ok(()),
    }
}

/// Returns the operations that a client may see as possible now, in the order of [`SrOp::ALL`].
pub fn allowed(sr: &SrFacts) -> Vec<SrOp> {
    SrOp::ALL.iter().copied().filter(|op| check(*op, sr).is_ok()).collect()
}

/// Returns the feature that the operation needs.
fn feature(op: SrOp) -> Option<SrFeature> {
    match op {
        SrOp::VdiCreate => Some(SrFeature::VdiCreate),
        SrOp::VdiDestroy => Some(SrFeature::VdiDelete),
        SrOp::VdiResize => Some(SrFeature::VdiResize),
        SrOp::VdiClone => Some(SrFeature::VdiClone),
        SrOp::VdiSnapshot => Some(SrFeature::VdiSnapshot),
        SrOp::VdiSetOnBoot => Some(SrFeature::VdiResetOnBoot),
        _ => None,
    }
}

/// Returns whether the operation concerns one disk only.
fn is_of_disk(op: SrOp) -> bool {
    op.name().starts_with("vdi_")
}

/// Returns whether Ringway implements the operation.
fn is_served(op: SrOp) -> bool {
    matches!(
        op,
        SrOp::Scan
            | SrOp::Destroy
            | SrOp::Forget
            | SrOp::Plug
            | SrOp::Unplug
            | SrOp::Update
            | SrOp::VdiCreate
            | SrOp::VdiIntroduce
            | SrOp::VdiDestroy
            | SrOp::VdiResize
            | SrOp::VdiClone
            | SrOp::VdiSnapshot
            | SrOp::VdiSetOnBoot
            | SrOp::PbdCreate
            | SrOp::PbdDestroy
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached() -> SrFacts {
        SrFacts { has_pbd: true, attached: true, ..SrFacts::default() }
    }

    fn names(sr: &SrFacts) -> String {
        allowed(sr).iter().map(|op| op.name()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_type_without_a_feature_does_not_have_its_operations() {
        let lacks: Vec<_> = SrFeature::ALL
            .iter()
            .copied()
            .filter(|feature| !SrFeature::OF_READERS.contains(feature))
            .collect();
        let reader = SrFacts { lacks, ..attached() };
        assert_eq!(names(&reader), "scan plug unplug update vdi_introduce pbd_create");
        assert_eq!(check(SrOp::VdiCreate, &reader), Err(Refusal::Unsupported));
        let mut capabilities = SrFeature::ALL.iter().map(|feature| feature.capability());
        assert_eq!(capabilities.next_back().unwrap(), "VDI_RESET_ON_BOOT/2");
    }

    #[test]
    fn what_is_shown_in_each_state() {
        let here = "scan plug unplug update vdi_create vdi_introduce vdi_destroy vdi_resize \
                    vdi_clone vdi_snapshot vdi_set_on_boot pbd_create";
        assert_eq!(names(&attached()), here);
        let full = SrFacts { has_vdi: true, ..attached() };
        assert_eq!(names(&full), here);
        let used = SrFacts { in_use: true, ..full.clone() };
        assert_eq!(names(&used), here.replace("unplug ", ""));
        let away = SrFacts { attached: false, ..full };
        assert_eq!(names(&away), "forget plug unplug pbd_create pbd_destroy");
        let empty = SrFacts { has_vdi: false, ..away };
        assert_eq!(names(&empty), "destroy forget plug unplug pbd_create pbd_destroy");
        // The PBD is gone while a machine uses a disk.
        let lost = SrFacts { in_use: true, ..empty };
        assert_eq!(names(&lost), "plug pbd_create pbd_destroy");
        assert_eq!(names(&SrFacts::default()), "forget pbd_create");
    }

    #[test]
    fn each_refusal_says_what_stands_in_the_way() {
        let full = SrFacts { has_vdi: true, in_use: true, ..attached() };
        let away = SrFacts { attached: false, ..full.clone() };
        for (op, sr, refusal) in [
            (SrOp::Destroy, &full, Refusal::SrAttached),
            (SrOp::Forget, &full, Refusal::SrAttached),
            (SrOp::PbdDestroy, &full, Refusal::SrAttached),
            (SrOp::Unplug, &full, Refusal::VdiInUse),
            (SrOp::Destroy, &away, Refusal::SrNotEmpty),
            (SrOp::Destroy, &SrFacts::default(), Refusal::SrNoPbd),
            (SrOp::Plug, &SrFacts::default(), Refusal::SrNoPbd),
            (SrOp::Unplug, &SrFacts::default(), Refusal::SrNoPbd),
            (SrOp::PbdDestroy, &SrFacts::default(), Refusal::SrNoPbd),
            (SrOp::Scan, &away, Refusal::SrNotAttached),
            (SrOp::VdiCreate, &away, Refusal::SrNotAttached),
            (SrOp::VdiMirror, &full, Refusal::NotImplemented),
        ] {
            assert_eq!(check(op, sr), Err(refusal), "{op:?}");
        }
    }

    #[test]
    fn only_operations_on_disks_run_beside_each_other() {
        let of_disk = [
            SrOp::VdiCreate,
            SrOp::VdiIntroduce,
            SrOp::VdiDestroy,
            SrOp::VdiResize,
            SrOp::VdiClone,
            SrOp::VdiSnapshot,
            SrOp::VdiSetOnBoot,
        ];
        let sr = attached();
        for op in allowed(&sr) {
            for &other in SrOp::ALL {
                let together = of_disk.contains(&op) && other.name().starts_with("vdi_");
                let busy = SrFacts { current: vec![other], ..sr.clone() };
                let expected =
                    if together { Ok(()) } else { Refusal::beside(OngoingOp::Sr(other)) };
                assert_eq!(check(op, &busy), expected, "{op:?} beside {other:?}");
                let busier = SrFacts { current: vec![SrOp::VdiCreate, other], ..sr.clone() };
                assert_eq!(check(op, &busier).is_ok(), together, "{op:?} beside {other:?}");
            }
        }
    }
}
