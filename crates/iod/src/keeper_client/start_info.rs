//! How a process came to serve, for those who look at it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::report::{StartReason, WorkerStart};

use super::KeeperClient;
use crate::keeper_link::KeeperInfo;

impl KeeperClient {
    /// How this process came to serve; nobody knows where there never was a keeper.
    pub(crate) fn start_info(&self) -> Option<WorkerStart> {
        self.state().worker_start.clone()
    }

    /// How long ago the keeper found this process serving, if it did not start it.
    pub(crate) fn adopted(&self) -> Option<Duration> {
        self.state().adopted.map(|at| at.elapsed())
    }
}

/// In place of whom a process serves from now on.
pub(super) fn start_info(keeper_info: &KeeperInfo, upgraded: bool) -> WorkerStart {
    let (how, after) = match keeper_info {
        _ if upgraded => (StartReason::Upgrade, None),
        KeeperInfo { restarts: 0, .. } => (StartReason::Start, None),
        KeeperInfo { last_exit, .. } => (StartReason::Restart, last_exit.clone()),
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WorkerStart { how, unix_seconds: since.as_secs_f64(), after }
}
