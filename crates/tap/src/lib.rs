//! Uplinks: multi-queue TAP devices with offloads, through which a switch reaches the host.
//!
//! # Words
//! - [`Tap`]: a device that is open, with some queues. What the host sends out of the device comes to
//!   a queue; what is written to a queue comes in at the device.
//! - [`Queue`]: one of them as the reactor uses it that owns it.
//! - [`Frame`]: what came, with its virtio-net header before it, in memory of the queue.
//!
//! # Model
//! ```text
//! Tap::open(name, queues) -> Tap::queue(n) -> on a reactor: add_poller(Some(fd), .. Queue::new ..)
//! kicked(): Queue::kicked            the device has something, once for a burst
//! poll():   Queue::reap              what ended: frames that came, frames that were sent
//!           Queue::next_frame .. recycle, Queue::next_sent
//!           Queue::send               any number
//!           Queue::ask                several reads at once, if there may be something
//! arm():    Queue::has_work
//! ```
//! Frames have the 12 bytes of header that [`net::header`] reads and writes: the kernel may leave
//! checksums and segmentation to us, and takes the same from us ([`net::header::Offloads::KERNEL`]).
//! It does not write the header's last field, the number of buffers. A guest's frame is sent with the
//! first bytes that were decided on, in memory of ours, before the rest in the guest's
//! ([`memory::Buffers::put_head`]).
//!
//! Reads never wait in the kernel. A queue that is idle is watched by the reactor, and costs nothing;
//! one that has something is asked for as many frames as the last time and one more, in one system
//! call. Before Linux 6.4 each frame is a system call of its own: the driver could not tell then that
//! a read of the ring would wait. Writes go out with whatever else the turn has submitted.
//!
//! The kernel spreads what the host sends over the queues that are attached: by the queue on which
//! the other direction of a flow was last written, else by a hash.
//!
//! # Errors
//! [`TapError`] for a device that cannot be opened, with what to do. [`QueueError`] when a queue has
//! failed, because the device was deleted or does nothing but fail: told once, and silent from then on.
//! A frame that the kernel does not take has a [`SendError`]; one that it cannot hand over is skipped and
//! counted ([`Queue::take_skipped`]).
//!
//! # Invariants
//! - A device that is to be there already is never made by mistake, and one that is to be new is
//!   never somebody else's.
//! - No allocation for a frame.
//! - Memory of frames stays as long as the kernel may write to it.
//!
//! # How to test
//! `tests/` makes devices in network namespaces of its own; root is needed.
#![forbid(unsafe_code)]

mod batch;
mod error;
mod open;
mod open_wait;
mod queue;
mod skipped_frames;

pub use error::{QueueError, SendError, TapError};
pub use open::{QUEUES_MAX, Tap, TapOrigin};
pub use queue::{Frame, Queue, SLOT_BYTES, SLOTS, Sent};
