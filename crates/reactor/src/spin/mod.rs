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

/// What a poller that finds nothing waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTarget {
    /// Its driver is to bring something new: nothing is under way.
    Driver,
    /// Its device is to end something; its driver may bring more.
    Device,
    /// Only an event brings it on, so that looking is of no use.
    Event,
}
