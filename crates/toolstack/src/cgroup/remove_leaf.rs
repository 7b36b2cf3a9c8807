//! Removal of the leaf of an exited process.

use std::time::Duration;

use super::{CgroupError, Leaf, SliceTree};

/// Most attempts to remove a leaf. [`PAUSE`] is the pause between two.
pub(super) const TURNS: u32 = 50;
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Removes the leaf of a process that has just exited.
///
/// The leaf stays if it contains another process by then. Other failures are logged, and the next
/// start of the daemon removes the leaf.
pub async fn leave(tree: SliceTree, group: Leaf) {
    for turn in 1..=TURNS {
        match tree.remove(group) {
            Ok(()) => return,
            Err(CgroupError::Busy { pids, .. }) if !pids.is_empty() => return,
            // The kernel removes a process from its group shortly after the exit, without a
            // notification.
            Err(CgroupError::Busy { .. }) if turn < TURNS => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::warn!("cannot remove a control group: {error}");
                return;
            }
        }
    }
}
