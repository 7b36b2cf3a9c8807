//! virtio-net rings on reactors, and frames between them.
//!
//! # Words
//! - **Port**: one interface of a guest, or of the host, at the switch.
//! - **Pair**: a receive and a transmit queue of a port; both live on one reactor.
//! - [`Hub`]: one reactor's part of the switch. It decides about each frame that enters on its
//!   reactor and delivers it.
//! - [`FrameSink`]: takes frames on a reactor, or refuses them, and never waits. A receive queue is
//!   one. With [`Hub::forward`], by which frames enter, this is all that a port is to the hub. A
//!   [`RunningQueue`] is a ring of a driver, a [`HostQueue`] is any other queue.
//! - [`PortIncarnation`]: a port between two resets of its driver.
//! - [`ControlQueueState`]: what a port's driver has requested over its control queue.
//! - **Link**: carries frames from one reactor to another; see `link`.
//! - **Backlog**: frames that wait because the guest posted too few buffers; see `backlog`.
//! - **Residence**: time from a frame's pop from the sender's ring until its receiver can see it.
//! - [`Fabric`]: the hubs of all reactors, and the interface to them for other threads.
//!
//! # Model
//! ```text
//! transmit queue: pop many -> header and first 128 bytes to private memory -> Hub::forward
//!   Hub: Frame::parse -> Header::parse -> Switch::lookup or decide -> for each receiver's queue
//!     same reactor:    FrameSink::deliver, one copy from the sender's buffers to the receiver's
//!     another reactor: into the link, one copy; there FrameSink::deliver, another copy
//! once per batch: publish each receive queue, each link and the transmit queue
//! ```
//! A frame leaves its sender's ring in the turn in which it was popped, unless a cap delays it. No
//! receiver can hold up a sender.
//!
//! # Design
//! **Work is done for many frames at once.** For a small frame the copy is the smallest cost.
//! Requests are popped 32 at a time, and what each needs is prefetched, so that these cache misses
//! overlap (`ring`). A request of one descriptor is an address and a length, not a chain with
//! lists.
//!
//! **A backlog absorbs bursts.** A guest posts buffers in bursts, and TCP sends in bursts. A frame
//! without buffers waits in its queue's backlog, and those behind it:
//! - The limit is 1 MiB or 1,024 frames. The kernel gives the memory when the first frame waits,
//!   and gets it back 1 s after the last one.
//! - The guest is asked to kick while frames wait, and only then.
//! - A frame that waited for 10 s is dropped. So are the frames that wait when the queue stops.
//! - Some drivers post more buffers only when they receive something. So a frame that is first for
//!   50 ms, while buffers exist but too few, is dropped.
//! - A full backlog drops the frame at once. A guest that posts nothing loses only its own frames.
//! - One turn delivers 64 frames or 256 KiB.
//! - A bucket of flows does not move off a queue before the guest has consumed what waited there.
//!
//! xen-netback keeps frames in the same way.
//!
//! **A link has one writer and one reader,** and 2 MiB. What a reactor learns goes through the same
//! links, before the frame that taught it. Records carry the [`PortIncarnation`]'s epoch, so a
//! driver that was reset gets no frame that it would not understand. Station updates carry the
//! number of the port's policy. So what was seen under another policy, or at another NIC's port of
//! the same number, is forgotten.
//!
//! **Control commands wait for all hubs, but block none.** Each hub gets a command as a task that
//! holds a token. The drop of the last token wakes the control queue, which answers then. So no
//! reactor waits for another, and an answer means that all hubs comply. The state survives stops of
//! the ring. It ends when the driver accepts features anew.
//!
//! **A queue's reactor reports what the guest consumed.** It does so only while a bucket waits to
//! move: after each batch, and 1, 11 and 111 ms after the last one (`consumption`). Two sources
//! count: buffers that the guest has made available since, and the entry behind which the driver
//! asks to be called. The value 0 does not count, because Linux writes it when it wants no calls. A
//! driver that asks to be called later than behind what it has consumed errs about its own order.
//!
//! **Each counter has one writer.** Frames, sizes and times of a pair belong to its reactor; each
//! reactor has its own sums of a port. Names of flows stay in the hubs and are asked for, so they
//! need no shared memory (`port_counters`).
//!
//! **The fabric talks to the hubs one after the other.** Each hub has applied a change when the
//! call returns. So no two reactors see two changes in a different order.
//!
//! # Errors
//! A frame that is not passed on has a [`net::Reason`] and is counted ([`Counts`], [`PairStats`]).
//! A ring that breaks the rules is reported to the front-end through its error descriptor, logged
//! once, and left alone ([`Fabric::broken_rings`]; [`QueueError`] if it cannot even start).
//!
//! # Invariants
//! - The hub decides on a private copy, and the receiver gets that copy. A guest that changes its
//!   memory changes only bytes that no code has parsed.
//! - No reactor touches memory or rings of a queue that it does not serve.
//! - Rings complete in the order in which they were made available. So the used index is all that a
//!   successor needs.
//! - No allocation and no lock per frame. Objects on one reactor share its hub through a
//!   [`std::cell::RefCell`]: code that has borrowed it calls nothing that borrows it.
//! - The descriptors of a receiver are not touched before the whole frame is known to fit.
//!
//! # How to test
//! `virtq::driver` plays guests on real reactors (`tests/`). `loom` walks through the orders in
//! which the two sides of a link can see each other's steps.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

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
pub use ring::{FaultHandler, RingKind};
pub use running_queue::{QueueError, RunningQueue};
