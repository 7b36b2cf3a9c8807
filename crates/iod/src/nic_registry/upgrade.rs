//! NICs that are handed over, or go on here because nothing came of it.
//!
//! ```text
//! messages end -> sessions freeze -> senders end: guests, then the host
//!   -> what is between reactors arrives
//!   -> receivers end -> (another process) -> receivers begin -> senders begin
//! ```
//! So a frame that a guest has got rid of is with its receiver, on either side of an upgrade, if there are
//! buffers for it there: one that waits for some is lost.

use std::sync::Arc;
use std::time::Instant;

use model::rpc::{RpcError, code};

use super::error::NicsError;
use super::{NicRegistry, busy};
use crate::error::error_chain;
use crate::served_nic::{NicError, QuiescedNic, ServedNic, StartBarrier, SwitchNetwork, Uplink};

/// NICs that stand still, by id.
#[derive(Debug, Default)]
pub(crate) struct QuiescedNics(pub(super) Vec<QuiescedNicEntry>);

#[derive(Debug)]
pub(super) struct QuiescedNicEntry {
    pub(super) id: String,
    pub(super) nic: Arc<ServedNic>,
    pub(super) quiesced_nic: QuiescedNic,
}

impl NicRegistry {
    /// A NIC is served.
    pub(crate) fn has_any(&self) -> bool {
        self.state().by_id.values().any(|entry| entry.nic.is_some())
    }

    /// From here on no verb changes anything, until [`Self::end_upgrade`].
    ///
    /// # Errors
    /// A verb is at work.
    pub(crate) fn begin_upgrade(&self) -> Result<(), RpcError> {
        // A verb on an uplink ends first.
        let networks = self.networks();
        let mut state = self.state();
        if let Some((id, participle)) =
            state.by_id.iter().find_map(|(id, entry)| Some((id, entry.busy?)))
        {
            let message =
                format!("NIC {id:?} is being {participle}; try again when that has ended");
            return Err(RpcError { code: code::WRONG_STATE, ..busy(&message) });
        }
        state.upgrading = true;
        drop(networks);
        self.ended.notify_all();
        Ok(())
    }

    /// Nothing came of it.
    pub(crate) fn end_upgrade(&self) {
        self.state().upgrading = false;
        self.ended.notify_all();
    }

    /// Waits until no front-end is within a message, and sends away those that are at `until`.
    pub(crate) fn settle(&self, until: Instant) {
        let nics: Vec<_> =
            self.state().by_id.values().filter_map(|entry| entry.nic.clone()).collect();
        nics.iter().for_each(|nic| nic.settle(until));
    }

    /// Lets all NICs and uplinks stand still. Whatever comes of it, [`Self::unquiesce`] undoes it.
    ///
    /// # Errors
    /// A device of an uplink does not end what it was given by `deadline`, or a reactor has ended.
    pub(crate) fn stand_still(&self, deadline: Instant) -> (QuiescedNics, Result<(), RpcError>) {
        let mut all = self.freeze();
        all.0.iter_mut().for_each(|one| one.quiesced_nic.drain_tx());
        let rested = self.uplinks(|uplink| uplink.begin_quiesce(deadline));
        let rested = rested.and_then(|()| all.drain());
        all.0.iter_mut().for_each(|one| one.quiesced_nic.drain_rx());
        let rested = rested.and_then(|()| self.uplinks(|uplink| uplink.finish_quiesce(deadline)));
        (all, rested.map_err(RpcError::from))
    }

    /// Sessions stand still, and are served on.
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

    /// Does something to all uplinks, one after the other.
    fn uplinks(
        &self,
        mut with: impl FnMut(&mut Uplink) -> Result<(), NicError>,
    ) -> Result<(), NicsError> {
        let mut networks = self.networks();
        Ok(networks.uplinks_mut().try_for_each(|(_, uplink)| with(uplink))?)
    }

    /// Goes on where all of them stand, as if nothing had happened.
    pub(crate) fn go_on(&self, still: QuiescedNics) {
        self.each_uplink("is not in it", |uplink| uplink.attach());
        let start_barrier = Arc::new(StartBarrier::default());
        // Nobody is complete before the last of them has begun.
        let begun = start_barrier.expect();
        for QuiescedNicEntry { id, nic, quiesced_nic } in still.0 {
            match nic.go_on(quiesced_nic, &start_barrier) {
                Ok(nic_session_thread) => self.state().serve(&id, nic, nic_session_thread),
                Err(error) => self.give_up(&id, &nic, &error_chain(&error)),
            }
        }
        // The host sends last of all.
        begun.join();
        self.each_uplink("sends nothing", |uplink| uplink.begin());
    }

    /// The same; one that fails leaves the others alone.
    fn each_uplink(&self, what: &str, with: impl Fn(&mut Uplink) -> Result<(), NicError>) {
        for (network, uplink) in self.networks().uplinks_mut() {
            if let Err(error) = with(uplink) {
                tracing::error!(network, "the host {what} any more: {}", error_chain(&error));
            }
        }
    }

    /// A NIC cannot go on: it is refused, and its guest waits in the backlog.
    fn give_up(&self, id: &str, nic: &Arc<ServedNic>, reason: &str) {
        let spec = self.state().by_id.get(id).map(|entry| entry.spec.clone());
        if let Some(spec) = spec {
            self.unplug(&spec, nic);
        }
        self.state().refuse(id, reason);
    }

    /// Another process serves all this: closes what is left of it here.
    pub(crate) fn part(&self, still: QuiescedNics) {
        still.0.into_iter().for_each(|one| one.quiesced_nic.part());
        self.networks().uplinks_mut().for_each(|(_, uplink)| uplink.part());
    }
}

impl QuiescedNics {
    /// Their number.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A network of theirs: all are at one switch.
    pub(super) fn lan(&self) -> Option<&Arc<SwitchNetwork>> {
        self.0.first().map(|one| one.nic.lan())
    }

    fn drain(&self) -> Result<(), NicsError> {
        self.lan().map_or(Ok(()), |switch_network| Ok(switch_network.drain()?))
    }
}
