//! Changes to the limits of a NIC while it is served.

use std::sync::Arc;

use model::nic::{NicLimits, NicSpec};
use model::rpc::RpcError;

use super::attach::policy;
use super::error::NicsError;
use super::{NicRegistry, busy, no_such_nic, wrong_state};
use crate::served_nic::ServedNic;

impl NicRegistry {
    /// Replaces the limits of a NIC. When this returns, each reactor applies them, and a new worker
    /// will too.
    ///
    /// # Errors
    /// No such NIC, the NIC is refused, another verb is running, or the keeper does not answer.
    pub(crate) fn limit(&self, id: &str, limits: NicLimits) -> Result<(), RpcError> {
        let mut state = self.state();
        state.open()?;
        let entry = state.by_id.get_mut(id).ok_or_else(|| no_such_nic(id))?;
        if let Some(participle) = entry.busy {
            return Err(busy(participle));
        }
        let Some(nic) = entry.nic.clone() else {
            return Err(wrong_state("the NIC is refused, see `stats`; detach it first"));
        };
        let spec = entry.spec.clone().with_limits(limits);
        if spec == entry.spec {
            return Ok(());
        }
        entry.busy = Some("limited");
        drop(state);
        let done = self.set_limits(&nic, &spec);
        let mut state = self.state();
        if let Some(entry) = state.by_id.get_mut(id) {
            entry.busy = None;
            if done.is_ok() {
                entry.spec = spec;
            }
        }
        drop(state);
        self.ended.notify_all();
        Ok(done?)
    }

    fn set_limits(&self, nic: &Arc<ServedNic>, spec: &NicSpec) -> Result<(), NicsError> {
        let policy = policy(spec, nic.lan())?;
        // Preserve the limits first: a limit that would be lost in a crash must not be applied.
        self.hold_changed(spec)?;
        Ok(nic.limit(policy)?)
    }
}
