//! Timestamps of a request in flight.

/// Timestamps of a request in flight, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTimestamps {
    /// Time at which the reactor could first know of the request.
    pub(crate) known: u64,
    /// Time at which the queue popped it.
    pub(crate) popped: u64,
    /// Time at which the cap admitted it; 0 until then.
    pub(crate) admitted: u64,
    /// Part of its time in the ring during which the cap throttled the queue.
    pub(crate) held: u64,
}

impl RequestTimestamps {
    /// Returns the time in the ring, without the time under the cap.
    pub(crate) fn queue(&self) -> u64 {
        self.popped.saturating_sub(self.known).saturating_sub(self.held)
    }

    /// Returns the time under the cap, in the ring and after the pop.
    pub(crate) fn cap(&self) -> u64 {
        self.held.saturating_add(self.admitted.saturating_sub(self.popped))
    }

    /// Returns when the disk received the request.
    pub(crate) fn given(&self) -> u64 {
        self.admitted.max(self.popped)
    }
}
