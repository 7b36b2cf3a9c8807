//! NICs that are handed over, or that continue here after a cancelled upgrade.
//!
//! ```text
//! messages end -> sessions freeze -> senders drain: guests, then the host
//!   -> frames between reactors arrive
//!   -> receivers drain -> (another process) -> receivers start -> senders start
//! ```
//! So each frame that a guest has sent is with its receiver before or after the upgrade, if there
//! are buffers for it. A frame that waits for buffers is lost.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use model::rpc::RpcError;

use super::error::NicsError;
use super::{NicRegistry, State, busy};
use crate::error::error_chain;
use crate::served_nic::{NicError, QuiescedNic, ServedNic, StartBarrier, SwitchNetwork, Uplink};

/// Quiesced NICs by id.
#[derive(Debug, Default)]
pub(crate) struct QuiescedNics(pub(super) Vec<QuiescedNicEntry>);

#[derive(Debug)]
pub(super) struct QuiescedNicEntry {
    pub(super) id: String,
    pub(super) nic: Arc<ServedNic>,
    pub(super) quiesced_nic: QuiescedNic,
}

impl NicRegistry {
    /// Returns whether a NIC is served.
    pub(crate) fn has_any(&self) -> bool {
        self.state().by_id.values().any(|entry| entry.nic.is_some())
    }

    /// Waits until no verb is running, at most until `until`.
    pub(crate) fn wait_verbs(&self, until: Instant) {
        let is_busy = |state: &mut State| state.by_id.values().any(|entry| entry.busy.is_some());
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.ended.wait_timeout_while(self.state(), left, is_busy);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Begins an upgrade. From here on no verb changes anything, until [`Self::end_upgrade`].
    ///
    /// # Errors
    /// Another verb is running.
    pub(crate) fn begin_upgrade(&self) -> Result<(), RpcError> {
        // A verb on an uplink ends first.
        let networks = self.networks();
        let mut state = self.state();
        if let Some((id, participle)) =
            state.by_id.iter().find_map(|(id, entry)| Some((id, entry.busy?)))
        {
            let message =
                format!("NIC {id:?} is being {participle}; try again when that has ended");
            return Err(RpcError { message, ..busy(participle) });
        }
        state.upgrading = true;
        drop(networks);
        self.ended.notify_all();
        Ok(())
    }

    /// Ends a cancelled upgrade.
    pub(crate) fn end_upgrade(&self) {
        self.state().upgrading = false;
        self.ended.notify_all();
    }

    /// Waits until no front-end is in the middle of a message, and disconnects those that still are
    /// at `until`.
    pub(crate) fn wait_message_boundary(&self, until: Instant) {
        let nics: Vec<_> =
            self.state().by_id.values().filter_map(|entry| entry.nic.clone()).collect();
        nics.iter().for_each(|nic| nic.wait_message_boundary(until));
    }

    /// Quiesces all NICs and uplinks. [`Self::unquiesce`] undoes it, also after an error.
    ///
    /// # Errors
    /// An uplink's device does not complete its I/O by `deadline`, or a reactor has ended.
    pub(crate) fn quiesce(&self, deadline: Instant) -> (QuiescedNics, Result<(), RpcError>) {
        let mut all = self.freeze();
        all.0.iter_mut().for_each(|one| one.quiesced_nic.drain_tx());
        let rested = self.uplinks(|uplink| uplink.begin_quiesce(deadline));
        let rested = rested.and_then(|()| all.drain());
        all.0.iter_mut().for_each(|one| one.quiesced_nic.drain_rx());
        all.0.iter_mut().for_each(|one| one.nic.end_unmappable(&mut one.quiesced_nic));
        let rested = rested.and_then(|()| self.uplinks(|uplink| uplink.finish_quiesce(deadline)));
        (all, rested.map_err(RpcError::from))
    }

    /// Freezes the sessions. Their queues are still served.
    fn freeze(&self) -> QuiescedNics {
        let mut state = self.state();
        let mut servings = Vec::new();
        for (id, entry) in &mut state.by_id {
            if let (Some(nic), Some(nic_session_thread)) =
                (&entry.nic, entry.nic_session_thread.take())
            {
                nic.freeze();
                servings.push((id.clone(), Arc::clone(nic), nic_session_thread));
            }
        }
        drop(state);
        let asked = Instant::now();
        let still = servings.into_iter().filter_map(|(id, nic, nic_session_thread)| {
            let quiesced_nic = nic_session_thread.wait_quiesced(&nic, asked)?;
            Some(QuiescedNicEntry { id, nic, quiesced_nic })
        });
        QuiescedNics(still.collect())
    }

    /// Calls `with` for each uplink in turn.
    fn uplinks(
        &self,
        mut with: impl FnMut(&mut Uplink) -> Result<(), NicError>,
    ) -> Result<(), NicsError> {
        let mut networks = self.networks();
        Ok(networks.uplinks_mut().try_for_each(|(_, uplink)| with(uplink))?)
    }

    /// Unquiesces all NICs as if nothing had happened.
    pub(crate) fn unquiesce(&self, still: QuiescedNics) {
        self.each_uplink("cannot attach again", |uplink| uplink.attach());
        let start_barrier = Arc::new(StartBarrier::default());
        // The barrier opens only after the last NIC has started.
        let begun = start_barrier.expect();
        for QuiescedNicEntry { id, nic, quiesced_nic } in still.0 {
            match nic.unquiesce(quiesced_nic, &start_barrier) {
                Ok(nic_session_thread) => {
                    let mut state = self.state();
                    if let Some(entry) = state.by_id.get(&id) {
                        self.watch_socket(&entry.spec, &nic_session_thread);
                    }
                    state.serve(&id, nic, nic_session_thread);
                }
                Err(error) => self.mark_refused(&id, &nic, &error_chain(&error)),
            }
        }
        // The host sends last.
        begun.join();
        self.each_uplink("cannot send again", |uplink| uplink.begin());
    }

    /// Calls `with` for each uplink. The failure of one does not affect the others.
    fn each_uplink(&self, what: &str, with: impl Fn(&mut Uplink) -> Result<(), NicError>) {
        for (network, uplink) in self.networks().uplinks_mut() {
            if let Err(error) = with(uplink) {
                tracing::error!(network, "uplink {what}: {}", error_chain(&error));
            }
        }
    }

    /// Marks a NIC refused that cannot continue. Its front-end waits in the backlog.
    fn mark_refused(&self, id: &str, nic: &Arc<ServedNic>, reason: &str) {
        let spec = self.state().by_id.get(id).map(|entry| entry.spec.clone());
        if let Some(spec) = spec {
            self.unplug(&spec, nic);
        }
        self.state().refuse(id, reason);
    }

    /// Closes the remaining connections, because another process serves the NICs.
    pub(crate) fn close_handed_over(&self, still: QuiescedNics) {
        still.0.into_iter().for_each(|one| one.quiesced_nic.close_handed_over());
        self.networks().uplinks_mut().for_each(|(_, uplink)| uplink.close_handed_over());
    }
}

impl QuiescedNics {
    /// Returns the number of NICs.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns one of their networks. All of them are at the same switch.
    pub(super) fn lan(&self) -> Option<&Arc<SwitchNetwork>> {
        self.0.first().map(|one| one.nic.lan())
    }

    fn drain(&self) -> Result<(), NicsError> {
        self.lan().map_or(Ok(()), |switch_network| Ok(switch_network.drain()?))
    }
}
