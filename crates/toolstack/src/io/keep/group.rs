//! The control group of a `ringway-io`. Its worker is where its keeper is. What cannot be had is told in
//! the log, and disks are served all the same.

use std::path::PathBuf;

use super::Keep;
use crate::cgroup::{CgroupError, Group, leave};

impl Keep {
    /// The file by which a process that is to become a `ringway-io` joins its group.
    pub(super) fn entrance(&self) -> Option<PathBuf> {
        let (tree, group) = (self.launch.tree.as_ref()?, Group::Datapath(self.sr));
        match tree.add(group) {
            Ok(()) => Some(tree.entrance(group)),
            Err(error) => {
                tracing::warn!(sr = %self.sr, "its ringway-io has no slice: {error}");
                None
            }
        }
    }

    /// Sees that processes of it are in its group.
    pub(super) fn place(&self, pids: impl IntoIterator<Item = u32>) {
        let Some(tree) = &self.launch.tree else { return };
        let sr = self.sr;
        for pid in pids {
            match tree.place(Group::Datapath(sr), pid) {
                Ok(false) | Err(CgroupError::Gone { .. }) => {}
                Ok(true) => tracing::info!(%sr, pid, "put into its control group"),
                Err(error) => tracing::warn!(%sr, pid, "outside of its control group: {error}"),
            }
        }
    }

    /// Removes the group when all have ended.
    pub(super) async fn leave_group(&self) {
        if let Some(tree) = &self.launch.tree {
            leave(tree.clone(), Group::Datapath(self.sr)).await;
        }
    }
}
