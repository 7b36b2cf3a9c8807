//! How NICs are polled: as the process is, but for those of which something else is asked.

use std::sync::Arc;

use model::poll::PollChange;
use model::rpc::{NicReply, RpcError};
use model::spec::PollSpec;

use super::attach::reply;
use super::{NicRegistry, State, busy, no_such_nic, wrong_state};
use crate::error::failed;
use crate::served_disk::policy;
use crate::served_nic::{NicSessionThread, ServedNic};

impl NicRegistry {
    /// NICs of which nothing else is asked are polled like this, also those that come later, and so
    /// are links between reactors.
    pub(crate) fn set_poll_defaults(&self, process: PollSpec) {
        let mut state = self.state();
        state.polling = process;
        let nics = || state.by_id.values().filter_map(|entry| entry.nic.as_ref());
        // All of them are at one switch.
        nics().take(1).for_each(|nic| nic.lan().set_polling(policy(process.resolve())));
        nics().for_each(|nic| nic.set_poll_defaults(process));
    }

    /// Polls a NIC otherwise from now on.
    ///
    /// # Errors
    /// No such NIC, a verb at work, or a keeper that does not hold it; nothing has changed then.
    pub(crate) fn poll(&self, id: &str, change: PollChange) -> Result<NicReply, RpcError> {
        let mut state = self.state();
        state.open()?;
        let entry = state.by_id.get_mut(id).ok_or_else(|| no_such_nic(id))?;
        if let Some(participle) = entry.busy {
            return Err(busy(participle));
        }
        let refused = || wrong_state("the NIC is refused, see `stats`; detach it first");
        let nic = entry.nic.clone().ok_or_else(refused)?;
        entry.busy = Some("changed");
        let spec = entry.spec.clone().with_polling(change.apply(nic.poll_spec()));
        drop(state);
        let held = self.hold_changed(&spec);
        let mut state = self.state();
        if let Some(entry) = state.by_id.get_mut(id) {
            entry.busy = None;
            if held.is_ok() {
                nic.set_poll(change);
                entry.spec = spec.clone();
            }
        }
        drop(state);
        self.ended.notify_all();
        held.map(|()| reply(&spec, &nic)).map_err(failed)
    }
}

impl State {
    /// A NIC is there.
    pub(super) fn serve(
        &mut self,
        id: &str,
        nic: Arc<ServedNic>,
        nic_session_thread: NicSessionThread,
    ) {
        // Under the lock, so that it misses nothing that is said of all.
        nic.lan().set_polling(policy(self.polling.resolve()));
        nic.set_poll_defaults(self.polling);
        if let Some(entry) = self.by_id.get_mut(id) {
            entry.serve(nic, nic_session_thread);
        }
    }
}
