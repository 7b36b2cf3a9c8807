//! How the queues of a disk wait, as it is asked for and as its device takes it; NICs share that.

use model::poll::{MAX_POLL_IDLE_THRESHOLD, MAX_POLL_US, PollChange};
use model::spec::{EffectivePolling, PollMode, PollSpec};
use reactor::{POLL_MAX_NS, PollPolicy};

use super::{ServedDisk, lock};

// What is accepted is done as it was asked for.
const _: () = assert!(MAX_POLL_US as u64 * 1000 <= POLL_MAX_NS && MAX_POLL_IDLE_THRESHOLD <= 100);

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollOverrides {
    /// Of this disk or NIC.
    own: PollSpec,
    /// Of all for which nothing else is.
    process: PollSpec,
}

impl PollOverrides {
    /// Of one disk or NIC; the process comes later.
    pub(crate) fn of(own: PollSpec) -> Self {
        Self { own, process: PollSpec::default() }
    }

    /// Of this one.
    pub(crate) fn own(self) -> PollSpec {
        self.own
    }

    /// Changes what is asked of this one.
    pub(crate) fn change(&mut self, change: PollChange) {
        self.own = change.apply(self.own);
    }

    /// This is asked of all.
    pub(crate) fn set_process(&mut self, process: PollSpec) {
        self.process = process;
    }

    pub(crate) fn in_force(self) -> EffectivePolling {
        self.own.or(self.process).resolve()
    }

    /// As queues take it.
    pub(crate) fn policy(self) -> PollPolicy {
        policy(self.in_force())
    }
}

/// As reactors take it.
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
    /// What is asked of this disk.
    pub fn poll_spec(&self) -> PollSpec {
        lock(&self.poll).own()
    }

    /// What is in force.
    pub fn polling(&self) -> EffectivePolling {
        lock(&self.poll).in_force()
    }

    /// Waits otherwise from now on. Never waits for storage.
    pub fn set_poll(&self, change: PollChange) {
        self.ask_poll(|poll_overrides| poll_overrides.change(change));
    }

    /// Where nothing is asked of this disk, this is.
    pub fn set_poll_defaults(&self, process: PollSpec) {
        self.ask_poll(|poll_overrides| poll_overrides.set_process(process));
    }

    fn ask_poll(&self, change: impl FnOnce(&mut PollOverrides)) {
        let mut poll_overrides = lock(&self.poll);
        change(&mut poll_overrides);
        // Under the lock, so that of two changes the last one stays.
        self.device.set_poll(poll_overrides.policy());
        drop(poll_overrides);
        self.look_again();
    }
}
