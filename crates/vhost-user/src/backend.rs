//! Interface of a session to its device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::{MemoryShare, Table};
use virtq::QueueStart;

use crate::channel::BackendChannel;
use crate::error::BackendError;

/// Reason to stop a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The front-end stops the ring (`GET_VRING_BASE`, `SET_VRING_ENABLE`). Requests that its
    /// in-flight region records continue when the ring starts again.
    Requested,
    /// Something that the ring depends on changes, perhaps the region itself; or the session ends.
    Change,
}

/// A device that front-ends use through sessions.
///
/// The session's control thread calls every method, one at a time. A method may wait for other
/// threads; the session reads the front-end's next message after the method has returned.
/// Indices are below [`queue_count`](Self::queue_count).
///
/// Order of calls: [`ack_features`](Self::ack_features) comes before the first
/// [`start_queue`](Self::start_queue). The session starts only stopped queues and stops only
/// started ones. It stops all queues before [`reset`](Self::reset) and
/// [`disconnected`](Self::disconnected), which is the last call of a session.
pub trait Backend {
    /// Returns the number of queues, 1 to 256: a kick message has eight bits for the index. The
    /// number never changes.
    fn queue_count(&self) -> u16;

    /// Returns the virtio feature bits that the device offers.
    fn features(&self) -> u64;

    /// Returns the protocol features of [`OFFERED`](crate::features::OFFERED) that this device does
    /// not offer, because front-ends misuse them with its kind. The value never changes.
    fn withheld_features(&self) -> u64;

    /// Applies the features that the front-end acknowledged, a subset of those offered. No queue
    /// runs.
    ///
    /// # Errors
    /// The device cannot serve this combination.
    fn ack_features(&mut self, features: u64) -> Result<(), BackendError>;

    /// Returns the device's share of the process's memory for front-ends. The value never changes.
    /// Without a share, only the limits of one session apply.
    fn memory_share(&self) -> Option<&MemoryShare> {
        None
    }

    /// Copies the configuration space from byte `offset` into `out`, which the caller has filled
    /// with zeroes. Bytes beyond the end of the space stay zero.
    fn read_config(&self, offset: u32, out: &mut [u8]);

    /// Writes configuration space, in bytes from `offset`.
    ///
    /// # Errors
    /// A field is read-only or does not accept the value.
    fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), BackendError>;

    /// Starts to serve a ring.
    ///
    /// # Errors
    /// The device cannot serve the ring, for example because it is not in memory.
    fn start_queue(&mut self, start: QueueStart) -> Result<(), BackendError>;

    /// Drains and stops a ring, and returns the index of the next available entry. All popped
    /// requests have then completed, and nothing touches the ring any more.
    ///
    /// A device may return without waiting for requests that take too long if `cause` is
    /// [`StopCause::Requested`] and the ring's in-flight region records them. It must not serve the
    /// ring again before all of them have ended. In all other cases such a device ends the
    /// session.
    fn stop_queue(&mut self, index: u16, cause: StopCause) -> u16;

    /// Gives every started queue new memory. Returns when no queue uses the old table for new
    /// requests. Each ring is at the same guest addresses as before.
    ///
    /// # Errors
    /// A ring is not wholly in the new memory. The session then stops all queues.
    fn set_memory(&mut self, table: &Arc<Table>) -> Result<(), BackendError>;

    /// Replaces the call descriptor of a started queue. `None`: the guest polls.
    ///
    /// # Errors
    /// The queue cannot use the descriptor.
    fn set_call(&mut self, index: u16, call: Option<Arc<OwnedFd>>) -> Result<(), BackendError>;

    /// Passes the channel for requests to this front-end. Any thread may use it.
    fn set_channel(&mut self, channel: BackendChannel);

    /// Returns the device to its state before the first request of the session. Acknowledged
    /// features become void; the channel stays.
    fn reset(&mut self);

    /// Reports that the front-end has disconnected. The device must drop the front-end's channel
    /// and everything else that belongs to it.
    fn disconnected(&mut self);
}
