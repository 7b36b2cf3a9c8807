//! NICs and uplinks that the keeper preserves, and their restore in a new worker.
//!
//! A NIC has no state except its parameters and its socket. The position of its rings is in guest
//! memory, and a front-end that reconnects reports it.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context;
use model::nic::{NicSpec, UplinkSpec};
use model::rpc::code;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{Access, Listener, ListenerParts};

use super::error::NicsError;
use super::{NicEntry, NicRegistry, State};
use crate::error::error_chain;
use crate::keeper_client::PreserveError;
use crate::keeper_link::PreservedEntry;
use crate::served_disk::SocketRole;
use crate::served_nic::{NicError, NicSessionThread, ServedNic};

/// Prefix of the keys of NICs.
const NIC: &str = "nic/";
const UPLINK: &str = "uplink/";
/// Newest format that is read, and the format that is written.
const FORMAT: u32 = 1;
/// First pause before an unavailable uplink is retried. The pause doubles each time.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Longest pause.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// NIC as its next worker finds it.
#[derive(Debug, Serialize, Deserialize)]
struct PreservedNic {
    /// Format of the record. It increases if workers that do not know it must not continue.
    format: u32,
    spec: NicSpec,
    /// True if the NIC is being detached or was never served. Only the end of the detach is left.
    leaving: bool,
}

/// Uplink as its next worker finds it.
#[derive(Debug, Serialize, Deserialize)]
struct PreservedUplink {
    format: u32,
    spec: UplinkSpec,
}

fn key(id: &str) -> String {
    format!("{NIC}{id}")
}

impl NicRegistry {
    /// Preserves a note that the socket's files will exist. If the worker dies before it can
    /// preserve the socket, its successor removes these files.
    pub(super) fn announce(&self, spec: &NicSpec) -> Result<(), PreserveError> {
        self.hold_with(spec, true, PreservedEntry::default())
    }

    /// Preserves a NIC in its current state.
    pub(super) fn hold(&self, spec: &NicSpec, listener: &Listener) -> Result<(), PreserveError> {
        let _fixed = self.keeper_client.fix_sockets();
        let sockets = vec![listener.parts()?];
        self.hold_with(spec, false, PreservedEntry { sockets, ..PreservedEntry::default() })
    }

    fn hold_with(
        &self,
        spec: &NicSpec,
        leaving: bool,
        what: PreservedEntry,
    ) -> Result<(), PreserveError> {
        let held = PreservedNic { format: FORMAT, spec: spec.clone(), leaving };
        let data = serde_json::to_value(held)?;
        self.keeper_client.preserve(&key(&spec.id), PreservedEntry { data, ..what })
    }

    /// Watches the files of a NIC's preserved socket from now on.
    pub(super) fn watch_socket(&self, spec: &NicSpec, nic_session_thread: &NicSessionThread) {
        if let Some(listener) = nic_session_thread.listener() {
            self.keeper_client.watch_socket(listener, access(spec));
        }
    }

    /// Preserves a changed spec of a preserved NIC.
    pub(super) fn hold_changed(&self, spec: &NicSpec) -> Result<(), PreserveError> {
        let _fixed = self.keeper_client.fix_sockets();
        let preserved_entry = self.keeper_client.entry(&key(&spec.id)).transpose()?;
        self.hold_with(spec, false, preserved_entry.unwrap_or_default())
    }

    /// Returns whether a NIC of this id is preserved.
    pub(super) fn is_held(&self, id: &str) -> bool {
        self.keeper_client.holds(&key(id))
    }

    /// Preserves the fact that a NIC is being detached. No worker serves it again.
    pub(super) fn begin_leaving(&self, id: &str) -> Result<(), PreserveError> {
        let _fixed = self.keeper_client.fix_sockets();
        self.keeper_client.leave_key(&key(id))
    }

    pub(super) fn forget(&self, id: &str) {
        if let Err(error) = self.keeper_client.forget_key(&key(id)) {
            tracing::error!(
                nic = id,
                "the keeper did not delete the NIC's record, a new worker would find it: {}",
                error_chain(&error)
            );
        }
    }

    /// Preserves the uplink of a network, or that there is none.
    pub(super) fn hold_uplink(&self, spec: &UplinkSpec) -> Result<(), NicsError> {
        let key = format!("{UPLINK}{}", spec.network);
        if spec.tap.is_none() {
            return Ok(self.keeper_client.forget_key(&key)?);
        }
        let held = PreservedUplink { format: FORMAT, spec: spec.clone() };
        let data = serde_json::to_value(held).map_err(PreserveError::from)?;
        Ok(self
            .keeper_client
            .preserve(&key, PreservedEntry { data, ..PreservedEntry::default() })?)
    }

    /// Removes the record of the uplink, because the network has ended.
    pub(super) fn forget_uplink(&self, network: &str) {
        if let Err(error) = self.keeper_client.forget_key(&format!("{UPLINK}{network}")) {
            tracing::error!(
                network,
                "the keeper did not delete the uplink's record: {}",
                error_chain(&error)
            );
        }
    }

    /// Removes the socket of a NIC that is not served.
    pub(super) fn sweep(&self, id: &str) {
        let Some(Ok(preserved_entry)) = self.keeper_client.entry(&key(id)) else { return };
        if preserved_entry.sockets.is_empty()
            && let Ok(held) = read::<PreservedNic>(&preserved_entry.data)
            && let Err(error) = Listener::sweep(&held.spec.socket)
        {
            // Another process owns the path by now, or the files were never created.
            tracing::info!(nic = id, "socket file not removed: {}", error_chain(&error));
        }
        preserved_entry.remove();
    }

    /// Restores every preserved NIC, before callers are accepted.
    pub(crate) fn restore(&self) {
        for (id, data) in self.keeper_client.preserved_under(NIC) {
            if self.has(&id) {
                // The NIC was taken over from a serving worker.
                continue;
            }
            match read::<PreservedNic>(&data) {
                Ok(held) if held.leaving => {
                    self.sweep(&id);
                    self.forget(&id);
                    tracing::info!(nic = id, "detached: completed the detach of a former worker");
                }
                Ok(held) => self.bring_back(held.spec),
                Err(why) => tracing::error!(
                    nic = id,
                    "NIC refused, guest I/O is blocked: {why}; or detach the NIC"
                ),
            }
        }
    }

    /// Restores every preserved uplink. Returns when all of them are restored or no longer
    /// requested. The kernel may keep the device of a dead worker for a moment, and no event
    /// reports its release. So each uplink is retried until it works.
    pub(crate) fn restore_uplinks(&self) {
        let mut pause = FIRST_RETRY;
        loop {
            let tried = self.keeper_client.preserved_under(UPLINK).into_iter();
            let left =
                tried.filter(|(network, data)| !self.bring_back_uplink(network, data)).count();
            if left == 0 {
                return;
            }
            let waits = |state: &mut State| !state.closing;
            let waited = self.ended.wait_timeout_while(self.state(), pause, waits);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            // After a cancelled upgrade, this thread must retry.
            let not_ours = |state: &mut State| state.upgrading && !state.closing;
            let waited = self.ended.wait_while(state, not_ours);
            if waited.unwrap_or_else(PoisonError::into_inner).closing {
                return;
            }
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Returns true if the uplink is restored, or never will be.
    fn bring_back_uplink(&self, network: &str, data: &Value) -> bool {
        let held = match read::<PreservedUplink>(data) {
            Ok(held) => held,
            Err(why) => {
                tracing::error!(network, "cannot restore the uplink: {why}");
                return true;
            }
        };
        let mut networks = self.networks();
        if self.state().open().is_err() {
            return false;
        }
        // A caller may have removed the uplink meanwhile.
        if !self.keeper_client.holds(&format!("{UPLINK}{network}")) {
            return true;
        }
        match self.set_uplink(&mut networks, &held.spec) {
            Ok(()) => true,
            Err(error) if error.code == code::FAILED => {
                tracing::warn!(network, "cannot restore the uplink yet: {}", error.message);
                false
            }
            // The network has no NIC, or has another uplink by now.
            Err(error) => {
                tracing::info!(network, "uplink not restored: {}", error.message);
                true
            }
        }
    }

    /// Serves a NIC as a former worker did, or refuses it with a reason.
    fn bring_back(&self, spec: NicSpec) {
        let id = spec.id.clone();
        let served = self.serve_held(&spec);
        if let Ok((_, nic_session_thread)) = &served {
            self.watch_socket(&spec, nic_session_thread);
        }
        let mut state = self.state();
        state.by_id.insert(id.clone(), NicEntry::new(spec));
        match served {
            Ok((nic, nic_session_thread)) => {
                state.serve(&id, nic, nic_session_thread);
                tracing::info!(nic = id, "taken over");
            }
            Err(error) => state.refuse(&id, &error_chain(&error)),
        }
    }

    /// Returns a preserved NIC and its socket.
    ///
    /// # Errors
    /// The NIC is not preserved, or its record has an unknown format.
    pub(super) fn held_nic(&self, id: &str) -> anyhow::Result<(NicSpec, ListenerParts)> {
        let preserved_entry =
            self.keeper_client.entry(&key(id)).context("the keeper has no record of the NIC")??;
        let held = read::<PreservedNic>(&preserved_entry.data).map_err(anyhow::Error::msg)?;
        anyhow::ensure!(!held.leaving, "the NIC is being detached");
        Ok((held.spec, self.held_socket(id)?))
    }

    fn held_socket(&self, id: &str) -> Result<ListenerParts, NicError> {
        let share = |source| NicError::Os { action: "share its socket", source };
        let gone = || share(io::Error::other("the keeper has no record of the NIC"));
        let preserved_entry =
            self.keeper_client.entry(&key(id)).ok_or_else(gone)?.map_err(share)?;
        preserved_entry.sockets.into_iter().next().ok_or_else(gone)
    }

    fn serve_held(&self, spec: &NicSpec) -> Result<(Arc<ServedNic>, NicSessionThread), NicsError> {
        let parts = self.held_socket(&spec.id)?;
        let nic = self.plug(spec)?;
        // The socket stays if the NIC cannot be served: front-ends wait in its backlog.
        let nic_session_thread = Listener::adopt(parts)
            .map_err(NicsError::from)
            .and_then(|listener| Ok(nic.serve(SocketRole::Listen(Arc::new(listener)), None)?));
        if nic_session_thread.is_err() {
            self.unplug(spec, &nic);
        }
        Ok((nic, nic_session_thread?))
    }
}

pub(super) fn access(spec: &NicSpec) -> Access {
    Access { mode: spec.socket_mode, group: spec.socket_group.clone() }
}

impl State {
    /// Marks a preserved NIC refused, because it cannot be served as its guest saw it.
    pub(super) fn refuse(&mut self, id: &str, reason: &str) {
        tracing::error!(nic = id, "NIC refused, guest I/O is blocked: {reason}");
        if let Some(entry) = self.by_id.get_mut(id) {
            (entry.nic, entry.nic_session_thread) = (None, None);
            (entry.busy, entry.refused) = (None, Some(reason.into()));
        }
    }
}

/// Decodes a record that another version may have written.
fn read<T: DeserializeOwned>(data: &Value) -> Result<T, String> {
    let format = data.get("format").and_then(Value::as_u64);
    let why = match format {
        Some(format) if format <= FORMAT.into() => match serde_json::from_value(data.clone()) {
            Ok(held) => return Ok(held),
            Err(error) => format!("the preserved record cannot be decoded: {error}"),
        },
        Some(format) => {
            format!(
                "the preserved record has format {format}, and this program reads up to {FORMAT}"
            )
        }
        None => "the preserved record has no format".into(),
    };
    Err(format!("{why}; use the version that wrote it"))
}
