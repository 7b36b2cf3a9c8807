//! Guests that fill memory and overflow files of their write caches, all of them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::storm::{EVENT_TIMEOUT, Storm};
use crate::experiment::Sample;
use crate::stats::percentile;
use crate::toolstack::caller::Caller;

/// Longest wait until the writes of all guests wait.
const DEADLINE: Duration = Duration::from_secs(600);
/// Most calls of `xe vm-list` while all guests wait.
const CALLS: usize = 500;

impl Storm {
    /// Starts all guests and waits until the writes of each wait for room. Then calls `xe vm-list`
    /// for at most `window`.
    pub(super) fn fill(mut self, window: Option<Duration>) -> Result<Sample> {
        let ready = self.ready()?;
        let (from, mut token) = (Instant::now(), String::new());
        let mut full = self.full()?;
        while full < ready.len() {
            ensure!(from.elapsed() < DEADLINE, "{full} of {} disks are full", ready.len());
            // A disk that is full is a message.
            token = self.host.client.events(&["message"], &token, EVENT_TIMEOUT)?.token;
            full = self.full()?;
        }
        let mut calls = Caller::start(&self.host.daemon, None)?.calls(CALLS, window)?;
        let metrics = [
            ("all_ready_s", ready.last().map_or(0.0, Duration::as_secs_f64)),
            ("xe_p50_ms", percentile(&mut calls, 50)),
            ("xe_p99_ms", percentile(&mut calls, 99)),
            ("xe_calls", calls.len() as f64),
            ("waiting", self.full()? as f64),
            ("running", self.running().len() as f64),
        ];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Returns the number of disks whose writes wait for room.
    fn full(&self) -> Result<usize> {
        Ok(self.disks()?.iter().filter(|disk| disk["state"] == "waiting").count())
    }
}
