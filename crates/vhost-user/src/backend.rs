//! The device behind a session.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use virtq::QueueStart;

use crate::channel::BackendChannel;
use crate::error::BackendError;

/// Why a queue is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The front-end stops the ring (`GET_VRING_BASE`, `SET_VRING_ENABLE`). What its in-flight
    /// region records goes on at the ring's next start.
    Asked,
    /// Something that the ring depends on changes, perhaps the region itself; or the session ends.
    Change,
}

/// A device that front-ends use through sessions.
///
/// Every method is called on the session's control thread, one at a time, and may wait for other
/// threads; the front-end's next message is read when it has returned. Indices are below
/// [`queue_count`](Self::queue_count).
///
/// Order of calls: [`ack_features`](Self::ack_features) before the first
/// [`start_queue`](Self::start_queue); a queue is started only when stopped, and stopped only
/// when started; all queues are stopped before [`reset`](Self::reset) and
/// [`disconnected`](Self::disconnected), which is the last call of a session.
pub trait Backend {
    /// Number of queues, 1 to 256 (a kick message has eight bits for the index). Constant.
    fn queue_count(&self) -> u16;

    /// Virtio feature bits that are offered.
    fn features(&self) -> u64;

    /// Protocol features of [`OFFERED`](crate::features::OFFERED) that are not offered, since
    /// front-ends misuse them with devices of this kind. Constant.
    fn withheld_features(&self) -> u64;

    /// Takes the acknowledged bits, a subset of those offered. No queue runs.
    ///
    /// # Errors
    /// A combination that cannot be served.
    fn ack_features(&mut self, features: u64) -> Result<(), BackendError>;

    /// Copies configuration space from byte `offset` on into `out`, which holds zeroes; what is
    /// beyond the end of the space stays zero.
    fn read_config(&self, offset: u32, out: &mut [u8]);

    /// Writes configuration space.
    ///
    /// # Errors
    /// A field that is read-only or takes no such value.
    fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), BackendError>;

    /// Starts to serve a ring.
    ///
    /// # Errors
    /// A ring that cannot be served, for example because it is not in memory.
    fn start_queue(&mut self, start: QueueStart) -> Result<(), BackendError>;

    /// Stops a ring and returns the index of the next available entry, when everything that was
    /// taken from the ring has been given back and nothing will touch it any more.
    ///
    /// A device that can wait no longer for what was taken may return all the same if that is
    /// recorded in the ring's in-flight region and `cause` is [`StopCause::Asked`]; it must not
    /// serve the ring anew before all of it has ended. Else it ends the session.
    fn stop_queue(&mut self, index: u16, cause: StopCause) -> u16;

    /// Gives every started queue new memory; returns when none uses the old table for new
    /// requests. Each ring is at the same guest addresses as before.
    ///
    /// # Errors
    /// A ring that is not wholly in the new memory. The session then stops all queues.
    fn set_memory(&mut self, table: &Arc<Table>) -> Result<(), BackendError>;

    /// Replaces the call descriptor of a started queue; `None`: the guest polls.
    ///
    /// # Errors
    /// The queue cannot take it.
    fn set_call(&mut self, index: u16, call: Option<Arc<OwnedFd>>) -> Result<(), BackendError>;

    /// A way to send requests to this front-end. It may be used from any thread.
    fn set_channel(&mut self, channel: BackendChannel);

    /// Back to the state before the first request of the session; acknowledged features are
    /// void, the channel stays.
    fn reset(&mut self);

    /// The front-end is gone; its channel and everything else of it must be let go.
    fn disconnected(&mut self);
}
