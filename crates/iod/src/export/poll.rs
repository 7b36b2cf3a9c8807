//! How the queues of a disk wait, as it is asked for and as its device takes it.

use model::poll::{MAX_POLL_IDLE_THRESHOLD, MAX_POLL_US, PollChange};
use model::spec::{PollMode, PollSpec, Polling};
use reactor::{POLL_MAX_NS, PollPolicy};

use super::{Export, lock};

// What is accepted is done as it was asked for.
const _: () = assert!(MAX_POLL_US as u64 * 1000 <= POLL_MAX_NS && MAX_POLL_IDLE_THRESHOLD <= 100);

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    disk: PollSpec,
    /// Of all disks for which nothing else is.
    process: PollSpec,
}

impl Asked {
    /// Of one disk; the process comes later.
    pub(super) fn of(disk: PollSpec) -> Self {
        Self { disk, process: PollSpec::default() }
    }

    fn in_force(self) -> Polling {
        self.disk.or(self.process).resolve()
    }

    /// As a device takes it.
    pub(super) fn policy(self) -> PollPolicy {
        policy(self.in_force())
    }
}

/// As reactors take it.
pub(crate) fn policy(set: Polling) -> PollPolicy {
    let Polling { mode, max_us, idle_threshold } = set;
    let mode = match mode {
        PollMode::Auto => reactor::PollMode::Auto,
        PollMode::Off => reactor::PollMode::Off,
        PollMode::Always => reactor::PollMode::Always,
    };
    PollPolicy { mode, max_ns: u64::from(max_us) * 1000, idle_percent: idle_threshold }
}

impl Export {
    /// What is asked of this disk.
    pub fn poll_spec(&self) -> PollSpec {
        lock(&self.poll).disk
    }

    /// What is in force.
    pub fn polling(&self) -> Polling {
        lock(&self.poll).in_force()
    }

    /// Waits otherwise from now on. Never waits for storage.
    pub fn set_poll(&self, change: PollChange) {
        self.ask_poll(|asked| asked.disk = change.apply(asked.disk));
    }

    /// Where nothing is asked of this disk, this is.
    pub fn set_poll_defaults(&self, process: PollSpec) {
        self.ask_poll(|asked| asked.process = process);
    }

    fn ask_poll(&self, change: impl FnOnce(&mut Asked)) {
        let mut asked = lock(&self.poll);
        change(&mut asked);
        // Under the lock, so that of two changes the last one stays.
        self.device.set_poll(asked.policy());
        drop(asked);
        self.look_again();
    }
}
