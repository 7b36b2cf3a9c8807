//! What the keeper holds of NICs and uplinks, and what a new worker makes of it.
//!
//! A NIC has no state but its parameters and its socket: where its rings stand is in the guest's
//! memory, and a front-end that connects again says so.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context;
use model::nic::{NicSpec, UplinkSpec};
use model::rpc::code;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{Listener, ListenerParts};

use super::error::NicsError;
use super::{NicEntry, NicRegistry, State};
use crate::error::error_chain;
use crate::keeper_client::PreserveError;
use crate::keeper_link::PreservedEntry;
use crate::served_disk::SocketRole;
use crate::served_nic::{NicError, NicSessionThread, ServedNic};

/// What keys of NICs begin with, and of uplinks.
const NIC: &str = "nic/";
const UPLINK: &str = "uplink/";
/// Newest format that is read, and the one that is written.
const FORMAT: u32 = 1;
/// Pause before an uplink that could not be had is tried again, the first time; it doubles.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// The longest.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// A NIC as its next worker finds it.
#[derive(Debug, Serialize, Deserialize)]
struct PreservedNic {
    /// Higher where a worker that does not know it must not go on.
    format: u32,
    spec: NicSpec,
    /// It is being detached, or was never there: nothing but the end of that is left to do.
    leaving: bool,
}

/// An uplink as its next worker finds it.
#[derive(Debug, Serialize, Deserialize)]
struct PreservedUplink {
    format: u32,
    spec: UplinkSpec,
}

fn key(id: &str) -> String {
    format!("{NIC}{id}")
}

impl NicRegistry {
    /// Has it held that there will be files of a socket: a worker that dies before it can have the
    /// socket held leaves them to its successor, which removes them.
    pub(super) fn announce(&self, spec: &NicSpec) -> Result<(), PreserveError> {
        self.hold_with(spec, true, PreservedEntry::default())
    }

    /// Has a NIC held as it is.
    pub(super) fn hold(&self, spec: &NicSpec, listener: &Listener) -> Result<(), PreserveError> {
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

    /// Has it held that something else is asked of a NIC that is held.
    pub(super) fn hold_changed(&self, spec: &NicSpec) -> Result<(), PreserveError> {
        let preserved_entry = self.keeper_client.entry(&key(&spec.id)).transpose()?;
        self.hold_with(spec, false, preserved_entry.unwrap_or_default())
    }

    /// Something is held of a NIC of this id.
    pub(super) fn is_held(&self, id: &str) -> bool {
        self.keeper_client.holds(&key(id))
    }

    /// Has it held that a NIC is being detached: no worker serves it again.
    pub(super) fn begin_leaving(&self, id: &str) -> Result<(), PreserveError> {
        self.keeper_client.leave_key(&key(id))
    }

    pub(super) fn forget(&self, id: &str) {
        if let Err(error) = self.keeper_client.forget_key(&key(id)) {
            tracing::error!(
                nic = id,
                "a new worker would look what is left: {}",
                error_chain(&error)
            );
        }
    }

    /// Has the uplink of a network held as it is, or that there is none.
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

    /// The network is gone.
    pub(super) fn forget_uplink(&self, network: &str) {
        if let Err(error) = self.keeper_client.forget_key(&format!("{UPLINK}{network}")) {
            tracing::error!(network, "its uplink is held on: {}", error_chain(&error));
        }
    }

    /// Removes the socket of a NIC that is not served.
    pub(super) fn sweep(&self, id: &str) {
        let Some(Ok(preserved_entry)) = self.keeper_client.entry(&key(id)) else { return };
        if preserved_entry.sockets.is_empty()
            && let Ok(held) = read::<PreservedNic>(&preserved_entry.data)
            && let Err(error) = Listener::sweep(&held.spec.socket)
        {
            // Somebody else's by now, or never made.
            tracing::info!(nic = id, "its socket is left alone: {}", error_chain(&error));
        }
        preserved_entry.remove();
    }

    /// Brings back every NIC that is held, before callers come.
    pub(crate) fn restore(&self) {
        for (id, data) in self.keeper_client.held_under(NIC) {
            if self.has(&id) {
                // Taken over from a worker that served it.
                continue;
            }
            match read::<PreservedNic>(&data) {
                Ok(held) if held.leaving => {
                    self.sweep(&id);
                    self.forget(&id);
                    tracing::info!(nic = id, "detached, as a worker before had begun to");
                }
                Ok(held) => self.bring_back(held.spec),
                Err(why) => tracing::error!(nic = id, "its guest waits: {why}; or detach the NIC"),
            }
        }
    }

    /// Brings back every uplink that is held, and returns when all are there, or nobody wants them
    /// any more. The kernel may keep the device of a dead worker for a moment, and no event tells
    /// when it lets go of that: so each is tried until it is there.
    pub(crate) fn restore_uplinks(&self) {
        let mut pause = FIRST_RETRY;
        loop {
            let tried = self.keeper_client.held_under(UPLINK).into_iter();
            let left =
                tried.filter(|(network, data)| !self.bring_back_uplink(network, data)).count();
            if left == 0 {
                return;
            }
            let waits = |state: &mut State| !state.closing;
            let waited = self.ended.wait_timeout_while(self.state(), pause, waits);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            // An upgrade that comes to nothing leaves it to us.
            let not_ours = |state: &mut State| state.upgrading && !state.closing;
            let waited = self.ended.wait_while(state, not_ours);
            if waited.unwrap_or_else(PoisonError::into_inner).closing {
                return;
            }
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// True: it is there, or never will be.
    fn bring_back_uplink(&self, network: &str, data: &Value) -> bool {
        let held = match read::<PreservedUplink>(data) {
            Ok(held) => held,
            Err(why) => {
                tracing::error!(network, "the host is not in it: {why}");
                return true;
            }
        };
        let mut networks = self.networks();
        if self.state().open().is_err() {
            return false;
        }
        // Somebody may have said meanwhile that there is to be none.
        if !self.keeper_client.holds(&format!("{UPLINK}{network}")) {
            return true;
        }
        match self.set_uplink(&mut networks, &held.spec) {
            Ok(()) => true,
            Err(error) if error.code == code::FAILED => {
                tracing::warn!(network, "the host is not in it yet: {}", error.message);
                false
            }
            // Nobody is in it, or it has another one by now.
            Err(error) => {
                tracing::info!(network, "its uplink stays as it is: {}", error.message);
                true
            }
        }
    }

    /// Serves a NIC as a worker before had it, or shows why not.
    fn bring_back(&self, spec: NicSpec) {
        let id = spec.id.clone();
        let served = self.serve_held(&spec);
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

    /// A NIC as it is held, and its socket.
    ///
    /// # Errors
    /// It is not held, or what is held is not understood.
    pub(super) fn held_nic(&self, id: &str) -> anyhow::Result<(NicSpec, ListenerParts)> {
        let preserved_entry = self.keeper_client.entry(&key(id)).context("it is not held")??;
        let held = read::<PreservedNic>(&preserved_entry.data).map_err(anyhow::Error::msg)?;
        anyhow::ensure!(!held.leaving, "it is being detached");
        Ok((held.spec, self.held_socket(id)?))
    }

    fn held_socket(&self, id: &str) -> Result<ListenerParts, NicError> {
        let share = |source| NicError::Os { action: "share its socket", source };
        let gone = || share(io::Error::other("it is not held"));
        let preserved_entry =
            self.keeper_client.entry(&key(id)).ok_or_else(gone)?.map_err(share)?;
        preserved_entry.sockets.into_iter().next().ok_or_else(gone)
    }

    fn serve_held(&self, spec: &NicSpec) -> Result<(Arc<ServedNic>, NicSessionThread), NicsError> {
        let parts = self.held_socket(&spec.id)?;
        let nic = self.plug(spec)?;
        // The socket stays if it cannot be served: front-ends wait in its backlog.
        let nic_session_thread = Listener::adopt(parts)
            .map_err(NicsError::from)
            .and_then(|listener| Ok(nic.serve(SocketRole::Listen(Arc::new(listener)), None)?));
        if nic_session_thread.is_err() {
            self.unplug(spec, &nic);
        }
        Ok((nic, nic_session_thread?))
    }
}

impl State {
    /// A NIC is held, and not to be had again as it was.
    pub(super) fn refuse(&mut self, id: &str, reason: &str) {
        tracing::error!(nic = id, "its guest waits: {reason}");
        if let Some(entry) = self.by_id.get_mut(id) {
            (entry.nic, entry.nic_session_thread) = (None, None);
            (entry.busy, entry.refused) = (None, Some(reason.into()));
        }
    }
}

/// Reads what another version may have written.
fn read<T: DeserializeOwned>(data: &Value) -> Result<T, String> {
    let format = data.get("format").and_then(Value::as_u64);
    let why = match format {
        Some(format) if format <= FORMAT.into() => match serde_json::from_value(data.clone()) {
            Ok(held) => return Ok(held),
            Err(error) => format!("what is held of it cannot be understood: {error}"),
        },
        Some(format) => {
            format!("what is held of it has format {format}, and this program reads up to {FORMAT}")
        }
        None => "what is held of it has no format".into(),
    };
    Err(format!("{why}; use the version that wrote it"))
}
