//! Polling defaults of disks and NICs without settings of their own.
//!
//! The program's options set the defaults, and a caller may override them. The override is
//! preserved, so that a worker that starts after a crash or an upgrade finds it.

use model::poll::PollChange;
use model::rpc::RpcError;
use model::spec::{EffectivePolling, PollSpec};
use serde_json::Value;

use super::{DiskRegistry, busy};
use crate::error::failed;
use crate::keeper_client::{KeeperClient, PreserveError};
use crate::keeper_link::PreservedEntry;

/// Key under which the override is preserved.
const KEY: &str = "poll";

/// Requested defaults.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    /// Defaults from the options of the program.
    started: PollSpec,
    /// Override that a caller has set since.
    set: PollSpec,
    /// True while a caller changes the override.
    busy: bool,
    /// True if the keeper did not answer in time. It may have stored other settings than those in
    /// effect.
    is_record_outdated: bool,
}

impl Defaults {
    /// Creates the defaults from the program's options and the preserved override.
    pub(super) fn found(started: PollSpec, keeper_client: &KeeperClient) -> Self {
        Self { started, set: held(keeper_client), busy: false, is_record_outdated: false }
    }

    /// Returns the settings that apply to disks.
    pub(super) fn spec(&self) -> PollSpec {
        self.set.or(self.started)
    }

    /// Returns the settings in effect.
    pub(super) fn in_force(&self) -> EffectivePolling {
        self.spec().resolve()
    }

    pub(super) fn busy(&self) -> bool {
        self.busy
    }

    pub(super) fn unheld(&self) -> bool {
        self.is_record_outdated
    }
}

/// Returns the preserved override. An override of an unknown format, from a newer program, is
/// ignored.
fn held(keeper_client: &KeeperClient) -> PollSpec {
    let Some(Ok(PreservedEntry { data, .. })) = keeper_client.entry(KEY) else {
        return PollSpec::default();
    };
    serde_json::from_value(data).unwrap_or_else(|error| {
        tracing::warn!("preserved polling defaults not decoded, the options apply: {error}");
        PollSpec::default()
    })
}

impl DiskRegistry {
    /// Changes the polling defaults of disks and NICs without settings of their own. Returns the
    /// settings in effect afterwards.
    ///
    /// # Errors
    /// Another caller is changing them, the process is about to end or to be upgraded, or the
    /// keeper does not preserve the change. Then nothing has changed. If the keeper did not answer
    /// in time, it may have stored the change all the same. A worker started after a crash would
    /// find it. So no upgrade begins until a later call has succeeded.
    pub fn set_poll_defaults(&self, change: PollChange) -> Result<EffectivePolling, RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        if disks.poll.busy {
            return Err(busy("another poll.defaults call is running; try again when it has ended"));
        }
        disks.poll.busy = true;
        let set = change.apply(disks.poll.set);
        drop(disks);
        let held = self.hold_poll(set);
        let mut disks = self.disks();
        disks.poll.busy = false;
        self.ended.notify_all();
        match &held {
            Ok(()) => disks.poll.is_record_outdated = false,
            Err(PreserveError::Late { .. }) => disks.poll.is_record_outdated = true,
            // The keeper still stores the former settings.
            Err(_) => {}
        }
        held.map_err(failed)?;
        disks.poll.set = set;
        let process = disks.poll.spec();
        // Apply it under the lock, so that a disk attached meanwhile gets it too.
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
