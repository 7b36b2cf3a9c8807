//! Looking for work instead of sleeping until it is announced.
//!
//! A poller that finds nothing may stay hot for a while. What it is told to do is its
//! [`PollPolicy`]; how long pays is what its [`PollWindow`](crate::PollWindow) has learnt; and
//! guards may forbid it, since a spin is paid by whoever else wants the CPU: see `guards`. The
//! pieces:
//! - `door`: policy in, counts out, shared with other threads.
//! - `wait`: one wait of a poller, from the turn that finds nothing to the one that finds work.
//! - `guards` and `budget`: what forbids a spin that its window would have.
//!
//! Source: design 4.3.

mod budget;
mod door;
mod guards;
mod share;
#[cfg(test)]
mod tests;
mod wait;

pub use door::{POLL_MAX_NS, PollMode, PollPolicy, PollReason, PollState, Polling, Refused};
pub(crate) use guards::Guards;
pub(crate) use wait::Waiter;

/// What a poller that finds nothing waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Its driver is to bring something new: nothing is under way.
    Driver,
    /// Its device is to end something; its driver may bring more.
    Device,
    /// Only an event brings it on, so that looking is of no use.
    Event,
}
