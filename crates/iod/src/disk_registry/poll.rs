//! How disks and NICs are polled for which nothing else is set.
//!
//! The program is started with one answer, and a caller may give another, which is held: a worker
//! that comes later, after a crash or an upgrade, finds it.

use model::poll::PollChange;
use model::rpc::RpcError;
use model::spec::{EffectivePolling, PollSpec};
use serde_json::Value;

use super::{DiskRegistry, wrong_state};
use crate::error::failed;
use crate::keeper_client::{KeeperClient, PreserveError};
use crate::keeper_link::PreservedEntry;

/// Key under which the change is held.
const KEY: &str = "poll";

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    /// With the options of the program.
    started: PollSpec,
    /// By a caller since.
    set: PollSpec,
    /// A caller is at it.
    busy: bool,
    /// The keeper did not answer in time, and may hold something else than what is in force.
    unheld: bool,
}

impl Defaults {
    /// As the program was started, and as it was held since.
    pub(super) fn found(started: PollSpec, keeper_client: &KeeperClient) -> Self {
        Self { started, set: held(keeper_client), busy: false, unheld: false }
    }

    /// For disks.
    pub(super) fn spec(&self) -> PollSpec {
        self.set.or(self.started)
    }

    /// What is in force.
    pub(super) fn in_force(&self) -> EffectivePolling {
        self.spec().resolve()
    }

    pub(super) fn busy(&self) -> bool {
        self.busy
    }

    pub(super) fn unheld(&self) -> bool {
        self.unheld
    }
}

/// What is held. What is not understood, because a newer program has left it, is not done.
fn held(keeper_client: &KeeperClient) -> PollSpec {
    let Some(Ok(PreservedEntry { data, .. })) = keeper_client.entry(KEY) else {
        return PollSpec::default();
    };
    serde_json::from_value(data).unwrap_or_else(|error| {
        tracing::warn!("what is held of polling is not understood, so it is as started: {error}");
        PollSpec::default()
    })
}

impl DiskRegistry {
    /// Changes how disks and NICs are polled for which nothing else is set; what is in force then.
    ///
    /// # Errors
    /// Another caller is at it, the process is about to end or to be upgraded, or the keeper does
    /// not hold it; nothing has changed then. Only if the keeper did not answer in time, it may
    /// hold it all the same, and a worker that comes after a crash would find it: no upgrade begins
    /// until a later call has succeeded.
    pub fn set_poll_defaults(&self, change: PollChange) -> Result<EffectivePolling, RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        if disks.poll.busy {
            return Err(wrong_state("poll.defaults is at work; try again when it has ended"));
        }
        disks.poll.busy = true;
        let set = change.apply(disks.poll.set);
        drop(disks);
        let held = self.hold_poll(set);
        let mut disks = self.disks();
        disks.poll.busy = false;
        match &held {
            Ok(()) => disks.poll.unheld = false,
            Err(PreserveError::Late { .. }) => disks.poll.unheld = true,
            // It holds what it held.
            Err(_) => {}
        }
        held.map_err(failed)?;
        disks.poll.set = set;
        let process = disks.poll.spec();
        // Under the lock, so that one which comes meanwhile misses nothing.
        for served_disk in disks.by_id.values().filter_map(|entry| entry.served_disk.as_ref()) {
            served_disk.set_poll_defaults(process);
        }
        self.nics.set_poll_defaults(process);
        Ok(disks.poll.in_force())
    }

    fn hold_poll(&self, set: PollSpec) -> Result<(), PreserveError> {
        if set == PollSpec::default() {
            self.keeper_client.forget_key(KEY)
        } else {
            let data = serde_json::to_value(set).unwrap_or(Value::Null);
            self.keeper_client.preserve(KEY, PreservedEntry { data, ..PreservedEntry::default() })
        }
    }
}
