//! Workers that were killed and do not end.
//!
//! A thread that sleeps in hung storage ends only when the storage answers. Until then its process
//! exists with all its descriptors, but runs no code. So locks, fences and connections of its
//! front-ends stay as they are. The kernel reports only the end of the last thread. So the keeper
//! checks a worker regularly, and replaces an unkillable one as if it had ended. Its successor
//! answers callers at once. It serves each disk when the kernel has released that disk's lock, as
//! after any death.

use std::time::{Duration, Instant};

use super::Keeper;
use super::worker::Worker;

/// Interval of the checks of a worker.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Longest time for the kernel to end a process whose storage answers. The kernel must free its
/// memory.
pub(super) const END_DEADLINE: Duration = Duration::from_secs(5);
/// Most abandoned processes. Each may have the memory of many guests mapped.
const MAX_RETIRED: usize = 8;

/// Remedy for a worker that does not end, for the log.
pub(super) const ADVICE: &str = "this ends when the storage answers, or the host restarts; check \
     for tasks in state D, and what the kernel's log says of the storage";

impl Worker {
    /// Checks whether the worker is ending, if a check is due.
    pub(super) fn check(&mut self, now: Instant) {
        if now >= self.check_at {
            self.check_at = now + CHECK_EVERY;
            if self.dying.is_none() && is_dying(self.pid()) {
                self.dying = Some(now);
            }
        }
    }

    /// Returns whether the worker should have ended by now.
    pub(super) fn is_unkillable(&self, now: Instant) -> bool {
        self.dying.is_some_and(|since| since + END_DEADLINE <= now)
    }

    /// Returns the time at which the worker counts as unkillable, if that is in the future.
    pub(super) fn unkillable_at(&self) -> Option<Instant> {
        let at = self.dying.map(|since| since + END_DEADLINE);
        at.filter(|at| *at > Instant::now())
    }
}

impl Keeper {
    /// Replaces an unkillable worker.
    pub(super) fn replace_unkillable(&mut self) {
        let now = Instant::now();
        if let Some(worker) = &mut self.worker {
            worker.check(now);
            if !worker.ready
                && worker.dying.is_none()
                && worker.ready_by.is_some_and(|at| at <= now)
            {
                tracing::error!(pid = worker.pid(), "killing the new worker, it does not serve");
                worker.kill();
            }
        }
        // Other cases wait: for the stop deadline, or because no worker has served yet.
        let replaced = |worker: &mut Worker| worker.is_unkillable(now) && !worker.ending;
        if self.ending || !self.served || self.retired.len() >= MAX_RETIRED {
            return;
        }
        let Some(worker) = self.worker.take_if(replaced) else { return };
        let pid = worker.pid();
        tracing::error!(
            pid,
            "the former worker cannot end: storage hangs, and one of its threads sleeps there; \
             its files stay open and locked, and guest I/O of its disks is blocked; {ADVICE}"
        );
        self.worker = self.promote_successor();
        if self.worker.is_none() {
            self.plan(&worker, format!("cannot end: storage hangs (process {pid})"));
        }
        self.retired.push(worker);
    }

    /// Forgets abandoned workers that have ended since.
    pub(super) fn reap_abandoned(&mut self) {
        self.retired.retain_mut(|worker| {
            let ended = worker.has_ended(Duration::ZERO);
            if ended && worker.since_dying() > END_DEADLINE {
                tracing::info!(pid = worker.pid(), "an abandoned worker has ended");
            }
            !ended
        });
    }

    /// Waits at the end for killed workers, and logs the ones that stay.
    pub(super) fn report_abandoned(&mut self) {
        let until = Instant::now() + END_DEADLINE;
        for worker in &mut self.retired {
            let left = until.saturating_duration_since(Instant::now());
            if worker.dying.is_some() && !worker.has_ended(left) {
                tracing::error!(
                    pid = worker.pid(),
                    "abandoned: process cannot be killed while storage hangs; {ADVICE}"
                );
            }
        }
    }
}

impl Worker {
    fn since_dying(&self) -> Duration {
        self.dying.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Returns whether the first thread of a process has ended. All threads that can end have ended
/// then.
fn is_dying(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_told_from_the_living() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_dying(pid));
        child.kill().unwrap();
        let ended = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        );
        let ended = ended.unwrap();
        let mut fds = [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(is_dying(pid), "not reaped yet");
        child.wait().unwrap();
        assert!(!is_dying(pid));
    }
}
