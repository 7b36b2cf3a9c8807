//! Uplinks: multi-queue TAP devices with offloads, through which a switch reaches the host.
//!
//! # Words
//! - [`Tap`]: an open device with some queues. Frames that the host sends out of the device arrive
//!   at a queue; frames written to a queue enter the host at the device.
//! - [`Queue`]: one queue, as the reactor that owns it uses it.
//! - [`Frame`]: a received frame with its virtio-net header before it, in memory of the queue.
//!
//! # Model
//! ```text
//! Tap::open(name, queues) -> Tap::queue(n) -> on a reactor: add_poller(Some(fd), .. Queue::new ..)
//! on_kick():  Queue::kicked            the device has something, once for a burst
//! poll():     Queue::reap              what ended: frames received, frames sent
//!             Queue::next_frame .. recycle, Queue::next_sent
//!             Queue::send              any number
//!             Queue::ask               several reads at once, if there may be something
//! arm():      Queue::has_work
//! ```
//! Frames have the 12 bytes of header that [`net::header`] reads and writes. The kernel may leave
//! checksums and segmentation to us, and takes the same from us
//! ([`net::header::Offloads::KERNEL`]). It does not write the header's last field, the number of
//! buffers. The head of a guest's frame, on which the switch decided, is sent from memory of this
//! process, before the rest in the guest's memory ([`memory::Buffers::put_head`]).
//!
//! # Design
//! **This is a crate of its own,** because a TAP queue waits for and owns other things than a
//! virtqueue, and `net` knows no descriptor.
//!
//! **Reads never wait in the kernel.** The reactor watches an idle queue, which costs nothing. A
//! queue that has something is asked for one frame more than the last time, in one system call.
//! Before Linux 6.4 each frame is a system call of its own, because the driver could not report
//! that a read of the ring would wait. Writes go out with whatever else the turn has submitted.
//!
//! **The kernel spreads frames over the attached queues:** by the queue on which the other
//! direction of a flow was last written, else by a hash.
//!
//! # Errors
//! [`TapError`] for a device that cannot be opened, with what to do. [`QueueError`] when a queue
//! has failed, because the device was deleted or every operation fails: reported once, and silent
//! from then on. A frame that the kernel does not take has a [`SendError`]; a frame that it cannot
//! hand over is skipped and counted ([`Queue::take_skipped`]).
//!
//! # Invariants
//! - A device that must exist already is never created by mistake, and a device that must be new is
//!   never another program's.
//! - No allocation per frame.
//! - Memory of frames stays as long as the kernel may write to it.
//!
//! # How to test
//! `tests/` makes devices in network namespaces of its own; root is needed.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod batch;
mod error;
mod open;
mod open_wait;
mod queue;
mod skipped_frames;

pub use error::{QueueError, SendError, TapError};
pub use open::{QUEUES_MAX, Tap, TapOrigin};
pub use queue::{Frame, Queue, SLOT_BYTES, SLOTS, Sent};
