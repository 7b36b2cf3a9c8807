//! Deadline for a worker that must end.
//!
//! A worker stops its disks within their deadlines, even if storage hangs. But a killed worker
//! still exists while one of its threads sleeps in hung storage. Then the keeper logs that and
//! ends.

use std::time::{Duration, Instant};

use super::Keeper;
use super::unkillable::{ADVICE, END_DEADLINE};

/// Time that a stop may take beyond the longest stop deadline of a disk.
const GRACE: Duration = Duration::from_secs(10);

/// Time of the next action against a worker that does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopDeadline {
    /// Kill the worker.
    Kill(Instant),
    /// Abandon the killed worker.
    Leave(Instant),
}

impl StopDeadline {
    pub(super) fn at(self) -> Instant {
        match self {
            Self::Kill(at) | Self::Leave(at) => at,
        }
    }
}

impl Keeper {
    /// Makes sure that a worker that must end does so, or is abandoned.
    ///
    /// # Errors
    /// The worker is abandoned.
    pub(super) fn enforce_stop_deadline(&mut self) -> anyhow::Result<()> {
        let Some(worker) = self.worker.as_mut().filter(|one| self.ending || one.ending) else {
            self.stop_deadline = None;
            return Ok(());
        };
        let (now, pid) = (Instant::now(), worker.pid());
        let longest = self.store.longest_stop() + GRACE;
        match *self.stop_deadline.get_or_insert(StopDeadline::Kill(now + longest)) {
            stop_deadline
                if worker.is_unkillable(now)
                    || matches!(stop_deadline, StopDeadline::Leave(at) if at <= now) =>
            {
                anyhow::bail!(
                    "process {pid} is abandoned, it cannot end while its storage hangs; it keeps \
                     its images and their locks until then; {ADVICE}"
                )
            }
            StopDeadline::Kill(at) if at <= now => {
                tracing::error!(pid, "killing the worker, it did not stop in time");
                worker.kill();
                self.stop_deadline = Some(StopDeadline::Leave(now + END_DEADLINE));
            }
            StopDeadline::Kill(_) | StopDeadline::Leave(_) => {}
        }
        Ok(())
    }
}
