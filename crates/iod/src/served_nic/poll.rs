//! Polling of a NIC's queues, by the same rules as that of a disk.

use std::sync::MutexGuard;

use model::poll::PollChange;
use model::spec::{EffectivePolling, PollSpec};

use super::{ServedNic, lock};
use crate::served_disk::PollOverrides;

impl ServedNic {
    /// Returns the settings of this NIC.
    pub(crate) fn poll_spec(&self) -> PollSpec {
        self.asked().own()
    }

    /// Returns the settings in effect.
    pub fn polling(&self) -> EffectivePolling {
        self.asked().in_force()
    }

    /// Changes the polling of this NIC.
    pub(crate) fn set_poll(&self, change: PollChange) {
        self.ask_poll(|poll_overrides| poll_overrides.change(change));
    }

    /// Sets the defaults of the process, which apply where this NIC has no settings.
    pub(crate) fn set_poll_defaults(&self, process: PollSpec) {
        self.ask_poll(|poll_overrides| poll_overrides.set_process(process));
    }

    pub(super) fn ask_poll(&self, change: impl FnOnce(&mut PollOverrides)) {
        let mut poll_overrides = self.asked();
        change(&mut poll_overrides);
        // Under the lock, so that the last of two changes stays in effect.
        self.switch_network.fabric.set_port_polling(self.spec.port, poll_overrides.policy());
    }

    fn asked(&self) -> MutexGuard<'_, PollOverrides> {
        lock(&self.poll)
    }
}
