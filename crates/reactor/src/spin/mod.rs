//! Busy polling: a poller without work spins instead of sleeping until it is notified.
//!
//! A poller that finds no work may stay hot for a while. Its [`PollPolicy`] sets the mode, and its
//! [`PollWindow`](crate::PollWindow) has learnt how long a spin pays. Guards may forbid a spin,
//! because it takes CPU time from other threads: see `guards`. The parts:
//! - `policy`: policy in, counters out, shared with other threads.
//! - `wait`: one wait of a poller, from the turn that finds no work to the one that finds work.
//! - `guards` and `budget`: conditions that forbid a spin although its window allows it.

mod budget;
mod guards;
mod policy;
#[cfg(test)]
mod tests;
mod wait;
mod wait_share;

pub(crate) use guards::SpinGuards;
pub use policy::{
    POLL_MAX_NS, PollControl, PollMode, PollPolicy, PollReason, PollState, SpinRefusal,
};
pub(crate) use wait::WaitTracker;

/// Event source that a poller without work waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTarget {
    /// The driver must submit a request: none is in flight.
    Driver,
    /// The device must complete a request; the driver may submit more.
    Device,
    /// Only an event brings work, so that polling is useless.
    Event,
}
