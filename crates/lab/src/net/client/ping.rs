//! One request at a time: a frame goes out, and one comes back.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use testkit::raw::guest::wait_readable;

use super::frame::{FULL, tcp};
use super::nic::{Nic, QUEUE_SIZE, Spec, with_header};
use crate::blk::client::tally::{histogram, record};

/// Longest time for a reply. After it, the reply counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// Wait mode of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
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

/// Two NICs of one switch that ping each other. A lost frame is an error.
pub(crate) struct PingPair {
    ends: [Nic; 2],
    /// Bytes of a frame.
    bytes: usize,
}

impl PingPair {
    /// Connects stations 1 and 2 to these sockets, for pings of frames of this many bytes.
    pub(crate) fn connect(sockets: [&Path; 2], bytes: usize) -> Result<Self> {
        let nic = |socket, from: u8, to: u8| {
            let spec = Spec {
                station: from,
                pairs: 1,
                depth: 16,
                queue_size: QUEUE_SIZE,
                receive_bytes: with_header(FULL),
                frames: vec![tcp(from, to, 40_000, bytes)],
            };
            Nic::connect(socket, &spec)
        };
        Ok(Self { ends: [nic(sockets[0], 1, 2)?, nic(sockets[1], 2, 1)?], bytes })
    }

    /// Exchanges requests and replies for the length of the window. Returns the round trips in
    /// nanoseconds.
    pub(crate) fn ping(&mut self, waits: Waits, how_long: Duration) -> Result<Histogram<u64>> {
        let ([asks, answers], bytes) = (&mut self.ends, with_header(self.bytes));
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
}
