//! When a request in flight passed which point.

/// When a request in flight passed which point, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTimestamps {
    /// When it was known.
    pub(crate) known: u64,
    /// When it was popped.
    pub(crate) popped: u64,
    /// When the cap let it pass; 0 until then.
    pub(crate) admitted: u64,
    /// Of the time in the ring, that for which the cap held the queue.
    pub(crate) held: u64,
}

impl RequestTimestamps {
    /// Time in the ring without that for which the cap held it.
    pub(crate) fn queue(&self) -> u64 {
        self.popped.saturating_sub(self.known).saturating_sub(self.held)
    }

    /// Time for which the cap held it, in the ring and popped.
    pub(crate) fn cap(&self) -> u64 {
        self.held.saturating_add(self.admitted.saturating_sub(self.popped))
    }

    /// When the disk got it.
    pub(crate) fn given(&self) -> u64 {
        self.admitted.max(self.popped)
    }
}
