//! Detach of one NIC or of all NICs.

use std::sync::{Arc, MutexGuard, PoisonError};

use model::rpc::{RpcError, code};

use super::{NicRegistry, State, busy, no_such_nic};
use crate::error::{error_chain, failed};
use crate::served_nic::{NicSessionThread, ServedNic};

impl NicRegistry {
    /// Disconnects the front-end of a NIC, unplugs it, closes its socket and removes its entry.
    /// When this returns, nothing of the NIC is left, including its frames.
    ///
    /// # Errors
    /// No such NIC, another verb is running, or the keeper does not answer.
    pub(crate) fn detach(&self, id: &str) -> Result<(), RpcError> {
        let state = self.state();
        state.open()?;
        self.carry_out_detach(state, id)
    }

    fn carry_out_detach(&self, mut state: MutexGuard<'_, State>, id: &str) -> Result<(), RpcError> {
        let Some(entry) = state.by_id.get_mut(id) else {
            drop(state);
            return self.detach_unknown(id);
        };
        if let Some(participle) = entry.busy {
            return Err(busy(participle));
        }
        entry.busy = Some("detached");
        let (nic, closing) = (entry.nic.clone(), state.closing);
        drop(state);
        match self.begin_leaving(id) {
            Ok(()) => {}
            // The whole process ends, and the keeper with it.
            Err(error) if closing => tracing::error!(nic = id, "{}", error_chain(&error)),
            Err(error) => {
                // A successor would serve the NIC as before, so clear the busy mark.
                if let Some(entry) = self.state().by_id.get_mut(id) {
                    entry.busy = None;
                }
                self.ended.notify_all();
                return Err(failed(error));
            }
        }
        let nic_session_thread =
            self.state().by_id.get_mut(id).and_then(|entry| entry.nic_session_thread.take());
        match (nic, nic_session_thread) {
            (Some(nic), Some(nic_session_thread)) => self.end(id, &nic, nic_session_thread),
            _ => self.sweep(id),
        }
        self.forget(id);
        self.state().by_id.remove(id);
        self.ended.notify_all();
        Ok(())
    }

    /// Detaches a NIC whose record has an unknown format because a newer version preserved it.
    fn detach_unknown(&self, id: &str) -> Result<(), RpcError> {
        if !self.is_held(id) {
            return Err(no_such_nic(id));
        }
        self.begin_leaving(id).map_err(failed)?;
        self.sweep(id);
        self.forget(id);
        Ok(())
    }

    fn end(&self, id: &str, nic: &Arc<ServedNic>, nic_session_thread: NicSessionThread) {
        nic.hang_up();
        // The NIC's thread removes the socket's files.
        if let Err(error) = nic_session_thread.wait() {
            tracing::warn!(
                nic = id,
                "no further front-ends were accepted: {}",
                error_chain(&error)
            );
        }
        nic.log_counts();
        let spec = self.state().by_id.get(id).map(|entry| entry.spec.clone());
        if let Some(spec) = spec {
            self.unplug(&spec, nic);
        }
    }

    /// Begins the shutdown: verbs are refused from here on.
    pub(crate) fn begin_end(&self) {
        self.state().closing = true;
        self.ended.notify_all();
    }

    /// Detaches everything, after [`Self::begin_end`]. Waits for running verbs.
    pub(crate) fn shut_down(&self) {
        let state = self.state();
        let ids: Vec<_> = state.by_id.keys().cloned().collect();
        // All NICs disconnect from now on, whichever the loop below waits for first.
        state.by_id.values().filter_map(|entry| entry.nic.as_ref()).for_each(|nic| nic.hang_up());
        drop(state);
        for id in ids {
            let is_busy =
                |state: &mut State| state.by_id.get(&id).is_some_and(|entry| entry.busy.is_some());
            let state = self.ended.wait_while(self.state(), is_busy);
            let state = state.unwrap_or_else(PoisonError::into_inner);
            // Keep the lock, so that no other verb can start in between.
            if let Err(error) = self.carry_out_detach(state, &id)
                && error.code != code::NO_SUCH_NIC
            {
                tracing::error!(nic = id, "detached with an error: {}", error.message);
            }
        }
    }
}
