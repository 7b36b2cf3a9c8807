//! Latency measurement: where the time of requests goes.
//!
//! # Terms
//! - [`Stage`]: a part of the request path: queue, cap, device, completion.
//! - **Known**: the earliest time at which the reactor could know of a request. The reactor polls a
//!   ring once a turn. A request that this poll sees and the last poll did not came in between. So
//!   it is known since the last poll: at most one turn too early, never too late. After the thread
//!   slept, or was idle, requests are known since its wake-up. A request that stays in the ring at
//!   the end of a turn is known since the poll that saw it first.
//! - [`Histogram`](reactor::Histogram): counts of durations; one writer, readers without a lock.
//! - [`SlowRequest`]: one slow request, stored by the flight recorder.
//!
//! # Model
//! ```text
//! known ----- popped ----- admitted ----- reaped ----- pushed
//!       queue        cap           device       completion
//! ```
//! The clock is read once a batch and stage. Requests that share their times are counted first and
//! recorded together, after the driver can see them. Of turns that follow each other within
//! microseconds, one in four is timed (`sampler`). Requests that end during submission share the
//! time of their batch as device time and have no completion time.
//!
//! A histogram takes 3.8 KiB and is created when its stage and kind of request first occur. A queue
//! that reads, writes and flushes on a disk without a cap has 12 of them, 46 KiB, and a flight
//! recorder of 8 KiB. 256 used queues take 14 MiB; an unused queue takes nothing.

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
