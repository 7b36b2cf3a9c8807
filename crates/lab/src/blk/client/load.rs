//! What a client is to do.

use std::time::Duration;

use testkit::driver::Options;

/// Where requests go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere on the disk, in multiples of the request's size.
    #[default]
    Random,
    /// One after the other, over and over.
    Sequential,
}

/// How the client waits for completions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wait {
    /// Asleep on the call eventfd.
    Sleep,
    /// Looking at the used ring all the time; it asks for no calls.
    #[default]
    Poll,
}

/// When the next request comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// When one has ended.
    #[default]
    Next,
    /// So long after all have ended; the client spins for exactly that time.
    Think(Duration),
    /// At random moments, so many a second on average, with exponential gaps from a seeded
    /// generator. A request for which no slot is free waits, and its wait counts.
    Poisson(u32),
}

/// What the client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Where requests go.
    pub pattern: Pattern,
    /// Bytes of one read.
    pub bytes: usize,
    /// Requests in flight; at most, in an open loop.
    pub depth: u16,
    /// How it waits.
    pub wait: Wait,
    /// One latency is taken every so many turns of the loop; of every request in an open loop.
    pub sample_every: u32,
    /// When requests come.
    pub arrivals: Arrivals,
}

impl Default for Load {
    /// 4 KiB random reads at depth 1, one after the other, by a client that polls.
    fn default() -> Self {
        Self {
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
    /// What a driver must have for it.
    #[must_use]
    pub fn driver(&self) -> Options {
        let default = Options::default();
        // Three descriptors a request.
        let queue_size = (3 * self.depth).next_power_of_two().max(default.queue_size);
        Options { slots: self.depth, slot_bytes: self.bytes, queue_size, ..default }
    }
}

/// How long a sample takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Load before the figures count.
    pub warm: Duration,
    /// Figures count.
    pub measure: Duration,
}

impl Window {
    /// A quarter of what counts goes before it.
    #[must_use]
    pub fn of(measure: Duration) -> Self {
        Self { warm: measure / 4, measure }
    }
}
