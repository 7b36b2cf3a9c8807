//! Two NICs of one switch that ping each other.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::client::{Nic, QUEUE_SIZE, Spec, Waits, ping, tcp, with_header};

/// Bytes of a frame.
const BYTES: usize = 64;

/// Two NICs that sleep until notified, as guests do. A lost frame is an error.
pub(crate) struct PingPair([Nic; 2]);

impl PingPair {
    /// Connects station 1 and station 2 to these sockets.
    pub(crate) fn connect(sockets: [&Path; 2]) -> Result<Self> {
        let nic = |socket, from: u8, to: u8| {
            let spec = Spec {
                station: from,
                pairs: 1,
                depth: 16,
                queue_size: QUEUE_SIZE,
                receive_bytes: with_header(BYTES),
                frames: vec![tcp(from, to, 40_000, BYTES)],
            };
            Nic::connect(socket, &spec)
        };
        Ok(Self([nic(sockets[0], 1, 2)?, nic(sockets[1], 2, 1)?]))
    }

    /// Sends pings for this time. Returns the longest round trip.
    pub(crate) fn longest_round_trip(&mut self, how_long: Duration) -> Result<Duration> {
        let [a, b] = &mut self.0;
        let latency_ns = ping([a, b], with_header(BYTES), Waits::Asleep, how_long)?;
        Ok(Duration::from_nanos(latency_ns.max()))
    }
}
