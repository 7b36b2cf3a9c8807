//! Start reason of a process, for reports.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::report::{StartReason, WorkerStart};

use super::KeeperClient;
use crate::keeper_link::KeeperInfo;

impl KeeperClient {
    /// Returns how this process was started. `None` if there never was a keeper.
    pub(crate) fn start_info(&self) -> Option<WorkerStart> {
        self.state().worker_start.clone()
    }

    /// Returns how long ago the keeper adopted this process, if it did not start it.
    pub(crate) fn adopted(&self) -> Option<Duration> {
        self.state().adopted.map(|at| at.elapsed())
    }
}

/// Returns the start reason of a process that serves from now on.
pub(super) fn start_info(keeper_info: &KeeperInfo, upgraded: bool) -> WorkerStart {
    let (how, after) = match keeper_info {
        _ if upgraded => (StartReason::Upgrade, None),
        KeeperInfo { restarts: 0, .. } => (StartReason::Start, None),
        KeeperInfo { last_exit, .. } => (StartReason::Restart, last_exit.clone()),
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WorkerStart { reason: how, unix_seconds: since.as_secs_f64(), previous_exit: after }
}
