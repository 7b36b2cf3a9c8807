//! Control group of a `ringway-io`: worker and keeper are in the same one. Failures are logged, and
//! the disks are served all the same.

use std::path::PathBuf;

use super::Supervisor;
use crate::cgroup::{CgroupError, leave};
use crate::ringway_io::served_devices::ServedDevice;

impl<T: ServedDevice> Supervisor<T> {
    /// Returns the file through which a future `ringway-io` process joins its group.
    pub(super) fn entrance(&self) -> Option<PathBuf> {
        let (tree, group) = (self.launch.tree.as_ref()?, self.owner.group());
        match tree.add(group) {
            Ok(()) => Some(tree.join_file(group)),
            Err(error) => {
                tracing::warn!(of = %self.owner, "ringway-io runs without a slice: {error}");
                None
            }
        }
    }

    /// Ensures that its processes are in its group.
    pub(super) fn place(&self, pids: impl IntoIterator<Item = u32>) {
        let Some(tree) = &self.launch.tree else { return };
        let owner = self.owner;
        for pid in pids {
            match tree.ensure_member(owner.group(), pid) {
                Ok(false) | Err(CgroupError::Gone { .. }) => {}
                Ok(true) => tracing::info!(of = %owner, pid, "moved into its control group"),
                Err(error) => {
                    tracing::warn!(of = %owner, pid, "outside of its control group: {error}")
                }
            }
        }
    }

    /// Removes the group after all processes have exited.
    pub(super) async fn leave_group(&self) {
        if let Some(tree) = &self.launch.tree {
            leave(tree.clone(), self.owner.group()).await;
        }
    }
}
