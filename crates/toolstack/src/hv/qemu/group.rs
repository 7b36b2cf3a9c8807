//! Control group of a guest.
//!
//! The group never decides about a machine. Failures are logged, and the machine continues.

use std::path::PathBuf;

use model::id::VmId;

use super::QemuHypervisor;
use super::domain::Domain;
use crate::cgroup::{Leaf, SliceTree, leave};

/// Ensures that a machine's QEMU is in its group.
pub(super) fn place(tree: Option<&SliceTree>, domain: &Domain) {
    let Some(tree) = tree else { return };
    let vm = domain.vm;
    match tree.ensure_member(Leaf::Guest(vm), domain.process.id()) {
        Ok(false) => {}
        Ok(true) => tracing::info!(%vm, "QEMU moved into its control group"),
        Err(_) if domain.process.is_gone() => {}
        Err(error) => tracing::warn!(%vm, "QEMU runs outside of its control group: {error}"),
    }
}

impl QemuHypervisor {
    /// Returns the file through which the machine's future QEMU process joins its group.
    pub(super) fn entrance(&self, vm: VmId) -> Option<PathBuf> {
        let (tree, group) = (self.settings.tree.as_ref()?, Leaf::Guest(vm));
        match tree.add(group) {
            Ok(()) => Some(tree.join_file(group)),
            Err(error) => {
                tracing::warn!(%vm, "QEMU starts outside of its control group: {error}");
                None
            }
        }
    }

    /// Removes the group of a machine whose process is gone.
    pub(super) fn leave_group(&self, vm: VmId) {
        let Some(tree) = &self.settings.tree else { return };
        if tree.remove(Leaf::Guest(vm)).is_err() {
            tokio::spawn(leave(tree.clone(), Leaf::Guest(vm)));
        }
    }
}
