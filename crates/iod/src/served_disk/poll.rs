//! Polling of a disk's queues, as requested and in its device's form. NICs use it too.

use model::poll::{MAX_POLL_IDLE_THRESHOLD, MAX_POLL_US, PollChange};
use model::spec::{EffectivePolling, PollMode, PollSpec};
use reactor::{POLL_MAX_NS, PollPolicy};

use super::{ServedDisk, lock};

// Every accepted setting can be applied unchanged.
const _: () = assert!(MAX_POLL_US as u64 * 1000 <= POLL_MAX_NS && MAX_POLL_IDLE_THRESHOLD <= 100);

/// Requested polling settings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollOverrides {
    /// Settings of this disk or NIC.
    own: PollSpec,
    /// Defaults of the process.
    process: PollSpec,
}

impl PollOverrides {
    /// Creates the settings of one disk or NIC, without defaults of the process.
    pub(crate) fn of(own: PollSpec) -> Self {
        Self { own, process: PollSpec::default() }
    }

    /// Returns the settings of this disk or NIC.
    pub(crate) fn own(self) -> PollSpec {
        self.own
    }

    /// Changes the settings of this disk or NIC.
    pub(crate) fn change(&mut self, change: PollChange) {
        self.own = change.apply(self.own);
    }

    /// Sets the defaults of the process.
    pub(crate) fn set_process(&mut self, process: PollSpec) {
        self.process = process;
    }

    pub(crate) fn in_force(self) -> EffectivePolling {
        self.own.or(self.process).resolve()
    }

    /// Returns the settings in effect in the queues' form.
    pub(crate) fn policy(self) -> PollPolicy {
        policy(self.in_force())
    }
}

/// Converts settings to the reactors' form.
pub(crate) fn policy(set: EffectivePolling) -> PollPolicy {
    let EffectivePolling { mode, max_us, idle_threshold } = set;
    let mode = match mode {
        PollMode::Auto => reactor::PollMode::Auto,
        PollMode::Off => reactor::PollMode::Off,
        PollMode::Always => reactor::PollMode::Always,
    };
    PollPolicy { mode, max_ns: u64::from(max_us) * 1000, idle_percent: idle_threshold }
}

impl ServedDisk {
    /// Returns the settings of this disk.
    pub fn poll_spec(&self) -> PollSpec {
        lock(&self.poll).own()
    }

    /// Returns the settings in effect.
    pub fn polling(&self) -> EffectivePolling {
        lock(&self.poll).in_force()
    }

    /// Changes the polling of this disk. Never waits for storage.
    pub fn set_poll(&self, change: PollChange) {
        self.ask_poll(|poll_overrides| poll_overrides.change(change));
    }

    /// Sets the defaults of the process, which apply where this disk has no settings.
    pub fn set_poll_defaults(&self, process: PollSpec) {
        self.ask_poll(|poll_overrides| poll_overrides.set_process(process));
    }

    fn ask_poll(&self, change: impl FnOnce(&mut PollOverrides)) {
        let mut poll_overrides = lock(&self.poll);
        change(&mut poll_overrides);
        // Under the lock, so that the last of two changes stays in effect.
        self.device.set_poll(poll_overrides.policy());
        drop(poll_overrides);
        self.recheck_queues();
    }
}
