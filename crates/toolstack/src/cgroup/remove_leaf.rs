//! Leaves of who has ended.

use std::time::Duration;

use super::{CgroupError, Leaf, SliceTree};

/// How often a leaf is tried to be removed, and the pause between.
pub(super) const TURNS: u32 = 50;
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Removes the leaf of who has just ended. It stays if somebody else is in it by then; what stays for
/// another reason is told in the log, and goes when the daemon is started again.
pub async fn leave(tree: SliceTree, group: Leaf) {
    for turn in 1..=TURNS {
        match tree.remove(group) {
            Ok(()) => return,
            Err(CgroupError::Busy { pids, .. }) if !pids.is_empty() => return,
            // The kernel takes a process out a moment after its end, and tells nobody.
            Err(CgroupError::Busy { .. }) if turn < TURNS => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::warn!("a control group is left: {error}");
                return;
            }
        }
    }
}
