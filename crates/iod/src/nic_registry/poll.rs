//! Polling of NICs: the defaults of the process, except for NICs with settings of their own.

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
    /// Sets the polling of all present and later NICs without settings of their own, and of links
    /// between reactors.
    pub(crate) fn set_poll_defaults(&self, process: PollSpec) {
        let mut state = self.state();
        state.polling = process;
        let nics = || state.by_id.values().filter_map(|entry| entry.nic.as_ref());
        // One NIC suffices, because all NICs are at the same switch.
        nics().take(1).for_each(|nic| nic.lan().set_polling(policy(process.resolve())));
        nics().for_each(|nic| nic.set_poll_defaults(process));
    }

    /// Changes the polling of a NIC.
    ///
    /// # Errors
    /// No such NIC, another verb is running, or the keeper does not preserve the change. Nothing
    /// has changed then.
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
    /// Records that a NIC is served.
    pub(super) fn serve(
        &mut self,
        id: &str,
        nic: Arc<ServedNic>,
        nic_session_thread: NicSessionThread,
    ) {
        // Under the lock, so that the NIC misses no change of the defaults.
        nic.lan().set_polling(policy(self.polling.resolve()));
        nic.set_poll_defaults(self.polling);
        if let Some(entry) = self.by_id.get_mut(id) {
            entry.serve(nic, nic_session_thread);
        }
    }
}
