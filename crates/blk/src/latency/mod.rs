//! Where the time of requests goes.
//!
//! # Words
//! - [`Stage`]: a part of a request's way: queue, cap, device, completion.
//! - **Known**: when the reactor could first know of a request. It looks at a ring once a turn;
//!   what it finds now and did not find the last time came in between, so a request is known
//!   from the last look on: at most the length of one turn too early, never too late. After the
//!   thread slept, or had nothing to do, it is known from its wake-up on. What stays in the ring
//!   when a turn ends is known from the look that showed it first.
//! - [`Histogram`](reactor::Histogram): counts of durations; one writer, readers without a lock.
//! - [`SlowRequest`]: one slow request, kept by the flight recorder.
//!
//! # Model
//! ```text
//! known ----- popped ----- admitted ----- reaped ----- pushed
//!       queue        cap           device       completion
//! ```
//! Clocks are read once a batch and stage, and what shares its times is counted first and recorded
//! together, after the driver could see it; of turns that follow one another within microseconds
//! one in four is timed (`streak`). Requests that end where they are submitted share the
//! time of their batch as device time and have no completion time of their own.
//!
//! A histogram takes 3.8 KiB and is made when its stage and kind of request first occur: a queue
//! that reads, writes and flushes on a disk without a cap has 12 of them, 46 KiB, and its flight
//! recorder 8 KiB. 256 queues in use take 14 MiB; a queue that was never used takes nothing.

mod arrivals;
mod batch;
mod flight_recorder;
mod in_flight;
mod sampler;
mod seqlock;
mod slow;
mod stages;
mod timestamps;
mod writer;

pub use flight_recorder::{Oldest, SlowRequest};
pub use stages::{Class, Op, Stage};

pub(crate) use flight_recorder::FlightRecorder;
pub(crate) use in_flight::{InFlight, InFlightTable};
pub(crate) use stages::Stages;
pub(crate) use timestamps::RequestTimestamps;
pub(crate) use writer::LatencyRecorder;
