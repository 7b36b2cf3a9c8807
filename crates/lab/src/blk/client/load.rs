//! Load of a client.

use std::time::Duration;

use testkit::driver::Options;

/// Order of the requests' addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Random addresses on the disk, in multiples of the request size.
    #[default]
    Random,
    /// Sequential addresses, repeated from the start.
    Sequential,
    /// One random address in each stretch of this many bytes, stretches in random order. After the
    /// last stretch, the client fails: it never returns to a stretch.
    EachOnce(u64),
}

/// Direction of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Read from the disk.
    #[default]
    Read,
    /// Write to the disk. The client never flushes.
    Write,
}

/// Client's way to wait for completions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wait {
    /// Sleep on the call eventfd.
    Sleep,
    /// Poll the used ring and disable calls.
    #[default]
    Poll,
}

/// Time of the next request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// When another request has completed.
    #[default]
    Next,
    /// This time after all requests have completed. The client spins for exactly that time.
    Think(Duration),
    /// At random, with this average number per second and exponential gaps from a seeded generator.
    /// A request without a free slot waits, and the wait counts.
    Poisson(u32),
}

/// Load of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Direction of the requests.
    pub access: Access,
    /// Order of the addresses.
    pub pattern: Pattern,
    /// Size of one request in bytes.
    pub bytes: usize,
    /// Requests in flight. In an open loop, the most requests in flight.
    pub depth: u16,
    /// Client's way to wait.
    pub wait: Wait,
    /// Turns of the loop per measured latency. An open loop measures every request.
    pub sample_every: u32,
    /// Time of the next request.
    pub arrivals: Arrivals,
}

impl Default for Load {
    /// Returns 4 KiB random reads at depth 1, without pauses, by a polling client.
    fn default() -> Self {
        Self {
            access: Access::Read,
            pattern: Pattern::Random,
            bytes: 4096,
            depth: 1,
            wait: Wait::Poll,
            sample_every: 64,
            arrivals: Arrivals::Next,
        }
    }
}

impl Load {
    /// Returns the driver options for this load.
    #[must_use]
    pub fn driver(&self) -> Options {
        let default = Options::default();
        // A request takes three descriptors.
        let queue_size = (3 * self.depth).next_power_of_two().max(default.queue_size);
        Options { slots: self.depth, slot_bytes: self.bytes, queue_size, ..default }
    }
}

/// Duration of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Load time before the measurement.
    pub warm: Duration,
    /// Time of the measurement.
    pub measure: Duration,
}

impl Window {
    /// Returns a window whose warm-up takes a quarter of the measurement.
    #[must_use]
    pub fn of(measure: Duration) -> Self {
        Self { warm: measure / 4, measure }
    }
}
