//! Disks whose requests wait because their storage is full.
//!
//! A reactor signals an eventfd when a disk's first request begins to wait, and when the last one
//! ends. A thread then compares each disk with what was reported: it logs each onset and end once,
//! and wakes callers of `disk.wait_full`. It sleeps meanwhile, and so do they.
//!
//! ```text
//!   disk::Channel --eventfd--> this thread --log, signal--> callers --> ringwayd
//! ```
//! Storage at its limit may be full and have room in turns. A disk is reported as full at most once
//! in [`REPORT_EVERY`]. If it is still full at the end of that time, it is reported then.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use disk::RoomWaits;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vhost_user::StopSignal;

/// Shortest time between two reports that a disk waits.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Watch over all disks of a process.
#[derive(Debug)]
pub(crate) struct FullWatch {
    signal: Arc<OwnedFd>,
    state: Mutex<WatchState>,
}

#[derive(Debug, Default)]
struct WatchState {
    disks: Vec<WatchedDisk>,
    /// Callers that wait until the reported disks change.
    waiters: Vec<StopSignal>,
    /// True if callers must not wait any more.
    closed: bool,
    /// True during an upgrade: requests that are handed over wait nowhere for a moment.
    paused: bool,
    /// True if the thread must end.
    over: bool,
}

#[derive(Debug)]
struct WatchedDisk {
    id: String,
    place: String,
    waits: Weak<RoomWaits>,
    is_reported: bool,
    /// Earliest time of the next report.
    not_before: Option<Instant>,
}

impl FullWatch {
    /// Starts the thread. [`Self::end`] ends it.
    ///
    /// # Errors
    /// The process cannot have more descriptors or threads.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let signal = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let watch = Arc::new(Self { signal, state: Mutex::default() });
        let watched = Arc::clone(&watch);
        std::thread::Builder::new().name("full".into()).spawn(move || watched.run())?;
        Ok(watch)
    }

    /// Watches a disk until it is dropped. `place` describes its storage in the log.
    pub(crate) fn add(&self, id: &str, place: String, waits: &Arc<RoomWaits>) {
        waits.signal(Arc::clone(&self.signal));
        self.state().disks.push(WatchedDisk {
            id: id.into(),
            place,
            waits: Arc::downgrade(waits),
            is_reported: false,
            not_before: None,
        });
    }

    /// Returns the ids of the disks whose requests wait. If they are those in `known`, waits until
    /// they change, the watch is [closed](Self::close), or the `caller` hangs up or sends more.
    ///
    /// # Errors
    /// The process cannot have more descriptors.
    pub(crate) fn wait_full(
        &self,
        known: Option<&BTreeSet<String>>,
        caller: BorrowedFd<'_>,
    ) -> io::Result<BTreeSet<String>> {
        let mut state = self.state();
        if state.closed || known != Some(&state.full()) {
            return Ok(state.full());
        }
        let changed = StopSignal::new()?;
        state.waiters.push(changed.clone());
        drop(state);
        let woken = changed.wait(Some(caller), None);
        let mut state = self.state();
        state.waiters.retain(|one| !one.is_same(&changed));
        woken.map(|_| state.full())
    }

    /// Lets waiting callers go, now and later: this process does not serve its disks any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.wake();
    }

    /// Pauses or continues the reports.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.state().paused = paused;
        self.signal();
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.state().over = true;
        self.close();
        self.signal();
    }

    fn signal(&self) {
        // A full counter wakes the thread as well.
        let _ = rustix::io::write(&self.signal, &1u64.to_ne_bytes());
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        // Each change is one complete step, so a panic elsewhere cannot leave the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut next = None;
        loop {
            let left = next.map(|next: Instant| next.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            // An interrupted wait only checks the disks once more.
            let _ = poll(&mut [PollFd::new(&self.signal, PollFlags::IN)], left.as_ref());
            let _ = rustix::io::read(&self.signal, &mut [0; 8]);
            let mut state = self.state();
            if state.over {
                return;
            }
            if state.paused {
                next = None;
                continue;
            }
            let has_changed;
            (has_changed, next) = state.check(Instant::now());
            if has_changed {
                state.wake();
            }
        }
    }
}

impl WatchState {
    fn full(&self) -> BTreeSet<String> {
        let exists = |one: &&WatchedDisk| one.is_reported && one.waits.strong_count() > 0;
        self.disks.iter().filter(exists).map(|one| one.id.clone()).collect()
    }

    fn wake(&mut self) {
        self.waiters.drain(..).for_each(|changed| changed.stop());
    }

    /// Compares all disks with what was reported. Returns whether that has changed, and when to
    /// check again.
    fn check(&mut self, now: Instant) -> (bool, Option<Instant>) {
        let (mut has_changed, mut next) = (false, None::<Instant>);
        self.disks.retain_mut(|one| {
            let Some(waits) = one.waits.upgrade() else {
                has_changed |= one.is_reported;
                return false;
            };
            match (waits.count() > 0, one.is_reported) {
                (true, false) => match one.not_before.filter(|at| *at > now) {
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {
                        one.report_full(now);
                        has_changed = true;
                    }
                },
                (false, true) => {
                    one.is_reported = false;
                    has_changed = true;
                    tracing::info!(disk = one.id, "no write waits for room any more");
                }
                (true, true) | (false, false) => {}
            }
            true
        });
        (has_changed, next)
    }
}

impl WatchedDisk {
    fn report_full(&mut self, now: Instant) {
        (self.is_reported, self.not_before) = (true, Some(now + REPORT_EVERY));
        let place = &self.place;
        tracing::warn!(disk = self.id, "the storage of {place} is full: writes wait for room");
    }
}
