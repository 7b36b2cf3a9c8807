//! How the queues of a NIC wait, by the same rules as those of a disk.

use std::sync::MutexGuard;

use model::poll::PollChange;
use model::spec::{EffectivePolling, PollSpec};

use super::{ServedNic, lock};
use crate::served_disk::PollOverrides;

impl ServedNic {
    /// What is asked of this NIC.
    pub(crate) fn poll_spec(&self) -> PollSpec {
        self.asked().own()
    }

    /// What is in force.
    pub fn polling(&self) -> EffectivePolling {
        self.asked().in_force()
    }

    /// Waits otherwise from now on.
    pub(crate) fn set_poll(&self, change: PollChange) {
        self.ask_poll(|poll_overrides| poll_overrides.change(change));
    }

    /// Where nothing is asked of this NIC, this is.
    pub(crate) fn set_poll_defaults(&self, process: PollSpec) {
        self.ask_poll(|poll_overrides| poll_overrides.set_process(process));
    }

    pub(super) fn ask_poll(&self, change: impl FnOnce(&mut PollOverrides)) {
        let mut poll_overrides = self.asked();
        change(&mut poll_overrides);
        // Under the lock, so that of two changes the last one stays.
        self.switch_network.fabric.set_port_polling(self.spec.port, poll_overrides.policy());
    }

    fn asked(&self) -> MutexGuard<'_, PollOverrides> {
        lock(&self.poll)
    }
}
