//! Follower of the disks that wait for space on one SR.
//!
//! It has a connection of its own, on which `disk.wait_full` is answered when other disks wait. It
//! follows a `ringway-io` until another keeper is watched.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

use error_causes::error_chain;
use model::id::{SrId, Uuid, VbdId};
use model::rpc::{FullReply, KnownFull, code};
use model::spec::DiskSpec;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::rpc_client::{is, nonsense, typed};
use super::supervisor::Supervisor;
use super::{DatapathError, RpcConnection};

/// Method of the call.
const METHOD: &str = "disk.wait_full";
/// Deadline of the call: none that matters. A dead worker closes the connection.
const NEVER: Duration = Duration::from_secs(1 << 32);
/// First pause before a retry. Each further pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// All disks of an SR with requests that wait because the storage is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullDisks {
    /// The SR.
    pub sr: SrId,
    /// Its disks that wait.
    pub disks: BTreeSet<VbdId>,
}

/// Follower of one keeper's workers.
struct FullFollower {
    supervisor: Weak<Supervisor<DiskSpec>>,
    sr: SrId,
    /// Process id of the keeper.
    pid: u32,
    out: mpsc::Sender<FullDisks>,
    /// Ids that were reported last.
    known: Option<BTreeSet<String>>,
    pause: Duration,
}

/// Sends the disks that wait, first the present ones, then after each change. `pid` is the keeper's
/// process id.
pub(super) async fn follow(
    supervisor: Weak<Supervisor<DiskSpec>>,
    (sr, pid): (SrId, u32),
    out: mpsc::Sender<FullDisks>,
) {
    let mut follower = FullFollower { supervisor, sr, pid, out, known: None, pause: FIRST_PAUSE };
    while let Some(control) = follower.control() {
        let followed = match RpcConnection::connect(&control).await {
            Ok(connection) => follower.follow_on(connection).await,
            Err(error) => Err(error),
        };
        match followed {
            // The keeper has ended. Its successor is followed anew.
            Ok(()) | Err(DatapathError::NotThere { .. }) => return,
            Err(error) => {
                let why = error_chain(&error);
                tracing::debug!(%sr, "full disks are not followed for a moment: {why}");
            }
        }
        sleep(follower.pause).await;
        follower.pause = (follower.pause * 2).min(LAST_PAUSE);
    }
}

impl FullFollower {
    /// Returns the control socket while this keeper is watched.
    fn control(&self) -> Option<PathBuf> {
        self.supervisor.upgrade()?.control_of(self.pid)
    }

    /// Follows on one connection. Returns `Ok` when there is no one to report to any more.
    ///
    /// # Errors
    /// The connection broke, after an upgrade or the worker's death.
    async fn follow_on(&mut self, mut connection: RpcConnection) -> Result<(), DatapathError> {
        loop {
            let params = serde_json::to_value(KnownFull { known: self.known.clone() });
            let params = params.map_err(|error| nonsense(METHOD, error))?;
            let disks = match connection.call(METHOD, params, NEVER).await {
                Ok(reply) => typed::<FullReply>(METHOD, reply)?.disks,
                Err(error) if is(&error, code::METHOD_NOT_FOUND) => {
                    // This worker is older. Its successor will know the method.
                    connection.closed().await;
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            self.pause = FIRST_PAUSE;
            if self.known.as_ref() == Some(&disks) {
                continue;
            }
            let vbds = disks.iter().filter_map(|id| id.parse::<Uuid>().ok()).map(VbdId).collect();
            let full_disks = FullDisks { sr: self.sr, disks: vbds };
            self.known = Some(disks);
            // An outdated follower must not overwrite what its successor has sent.
            if self.control().is_none() || self.out.send(full_disks).await.is_err() {
                return Ok(());
            }
        }
    }
}
