//! One request at a time: a frame goes out, and one comes back.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use testkit::raw::guest::wait_readable;

use super::nic::Nic;
use crate::blk::client::tally::{histogram, record};

/// Longest time for a reply. After it, the reply counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// Wait mode of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum Waits {
    /// Asleep until a call, as guests do.
    Asleep,
    /// By polling all the time, as DPDK does.
    Polling,
}

impl Nic {
    fn await_one(&mut self, bytes: u32, waits: Waits) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            if self.receive_one(bytes)? {
                return Ok(());
            }
            let now = Instant::now();
            ensure!(now < until, "a frame is lost");
            if waits == Waits::Polling {
                continue;
            }
            let Some(ring) = self.first() else { continue };
            ring.want_calls(true)?;
            if self.receive_one(bytes)? {
                return Ok(());
            }
            if let Some(ring) = self.first() {
                wait_readable(&[ring.call().as_fd()], until.saturating_duration_since(now))?;
                ring.called()?;
            }
        }
    }
}

/// Exchanges requests and replies for the length of the window. Returns the round trips in
/// nanoseconds.
pub(in crate::net) fn ping(
    ends: [&mut Nic; 2],
    bytes: u32,
    waits: Waits,
    how_long: Duration,
) -> Result<Histogram<u64>> {
    let [asks, answers] = ends;
    let mut latency_ns = histogram()?;
    let until = Instant::now() + how_long;
    while Instant::now() < until {
        let start = Instant::now();
        asks.send_one()?;
        answers.await_one(bytes, waits)?;
        answers.send_one()?;
        asks.await_one(bytes, waits)?;
        record(&mut latency_ns, start);
    }
    Ok(latency_ns)
}
