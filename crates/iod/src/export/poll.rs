//! How queues of a disk wait, as it is asked for and as its device takes it.

use model::spec::PollMode;
use reactor::PollPolicy;

/// A policy as a device takes it.
pub(super) fn of(mode: PollMode) -> PollPolicy {
    let mode = match mode {
        PollMode::Off => reactor::PollMode::Off,
        PollMode::Always => reactor::PollMode::Always,
    };
    PollPolicy { mode, ..PollPolicy::default() }
}
