//! virtio-net rings on reactors, and frames between them.
//!
//! # Words
//! - **Port**: one interface of a guest, or of the host, at the switch.
//! - **Pair**: a receive and a transmit queue of a port; both live on one reactor.
//! - [`Hub`]: one reactor's part of the switch. It decides about each frame that comes in on its
//!   reactor, and gives it to who shall get it.
//! - [`FrameSink`]: whoever takes frames on a reactor: a receive queue, or anything else. Together with
//!   [`Hub::forward`], by which frames come in, that is all that a port is to the hub. A
//!   [`RunningQueue`] is a ring of a driver, an [`HostQueue`] is anything else.
//! - [`PortIncarnation`]: a port between two resets.
//! - [`ControlQueueState`]: what the driver of a port asks for over its control queue.
//! - **Link**: the way of frames from one reactor to another; see `link`.
//! - **Residence**: from when a frame is taken of its sender's ring to when its receiver is shown it.
//! - [`Fabric`]: the hubs of all reactors, and how the rest of the program speaks to them.
//!
//! # Model
//! ```text
//! transmit queue: pop many -> header and first 128 bytes to private memory -> Hub::forward
//!   Hub: Frame::parse -> Header::parse -> Switch::way or decide -> for each receiver: steering, then
//!     same reactor:    Outlet::give, one copy from the sender's buffers to the receiver's
//!     another reactor: into the link, one copy; there Outlet::give, another copy
//! once per batch: each receive queue, each link and the transmit queue are published
//! ```
//! A frame leaves its sender's ring in the turn in which it was popped, unless a cap holds it back:
//! nobody else is ever waited for. What a receiver has no buffers for waits in its **backlog**, in memory
//! of ours, until it has, and the frames behind it; a backlog or a link without room loses the frame,
//! and it is counted there.
//!
//! # Errors
//! A frame that is not passed on has a [`net::Reason`] and is counted ([`Counts`], [`PairStats`]). A ring that
//! breaks the rules is told to the front-end through its error descriptor, logged once, and left
//! alone ([`QueueError`] if it cannot even start).
//!
//! # Invariants
//! - What is decided on is a private copy, and the receiver gets that copy: a guest that changes its
//!   memory meanwhile changes nothing but bytes that nobody has looked at.
//! - No reactor touches memory or rings of a queue that it does not serve.
//! - Rings complete in the order in which they were made available, so that used indices tell all
//!   there is to know: who goes on with a ring does so at its used index.
//! - No allocation and no lock for a frame. A hub is shared by what lives on its reactor through a
//!   [`std::cell::RefCell`]: nothing that has borrowed it calls what borrows it.
//! - The descriptors of a receiver are not touched before the whole frame is known to fit.
//!
//! # How to test
//! `virtq::driver` plays guests on real reactors (`tests/`). The order in which the two sides of a
//! link see each other's steps is walked through under `loom`.
#![forbid(unsafe_code)]

mod backlog;
mod consumption;
mod control;
mod counts;
mod fabric;
mod frame_buffer;
mod frame_sink;
mod host_queue;
mod hub;
mod hub_poller;
mod incarnation;
mod link;
mod port_counters;
mod queue_counts;
mod queue_registration;
mod quiesce;
mod receive;
mod residence;
mod ring;
mod ring_allocator;
mod running_queue;
mod timer;
mod transmit;

pub use control::ControlQueueState;
pub use counts::{Counts, PortCounts};
pub use fabric::{Fabric, FabricError};
pub use frame_buffer::{FrameBuffer, StoredFrame};
pub use frame_sink::{EgressFrame, FrameSink};
pub use host_queue::{HostQueue, HostQueueParts};
pub use hub::{Hub, IngressFrame};
pub use incarnation::PortIncarnation;
pub use queue_counts::{DirectionCounts, PairStats, SIZES, size_bounds};
pub use ring::FaultHandler;
pub use running_queue::{QueueError, RunningQueue};
