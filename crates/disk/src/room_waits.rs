//! Count of the requests of a disk that wait for space.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of requests of a disk that wait for space on its storage, over all channels.
#[derive(Debug, Default)]
pub struct RoomWaits {
    /// One that is tried again still counts, until it succeeds or fails.
    waiting: AtomicU64,
    /// Eventfd that is signalled when the first request begins to wait, and when the last one ends.
    signal: OnceLock<Arc<OwnedFd>>,
}

impl RoomWaits {
    /// Counts requests that begin to wait.
    pub fn begin(&self, requests: u64) {
        if requests > 0 && self.waiting.fetch_add(requests, Ordering::Relaxed) == 0 {
            self.notify();
        }
    }

    /// Counts requests that no longer wait.
    pub fn end(&self, requests: u64) {
        if requests > 0 && self.waiting.fetch_sub(requests, Ordering::Relaxed) == requests {
            self.notify();
        }
    }

    /// Returns the number of requests that wait.
    pub fn count(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Signals this eventfd whenever [`Self::count`] becomes or ceases to be 0. It must not block:
    /// reactor threads write to it. Only the first call has an effect.
    pub fn signal(&self, eventfd: Arc<OwnedFd>) {
        let _ = self.signal.set(eventfd);
    }

    fn notify(&self) {
        if let Some(eventfd) = self.signal.get() {
            // A full counter has signalled already.
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }
}
