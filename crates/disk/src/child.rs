//! Channels of other disks, which cost nothing while they have no request.

use std::sync::Arc;

use reactor::Context;

use crate::{Channel, Completion, Disk, Request, SubmitOutcome};

/// Channel of a disk below another one. It costs nothing while it has no request.
pub struct Child {
    channel: Box<dyn Channel>,
    in_flight: usize,
    /// True if it has had a request since the last [`Self::reap`], or has one now.
    is_used: bool,
}

impl std::fmt::Debug for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Child({} in flight)", self.in_flight)
    }
}

impl Child {
    /// Creates a child that has no request.
    pub fn new(channel: Box<dyn Channel>) -> Self {
        Self { channel, in_flight: 0, is_used: false }
    }

    /// Opens a channel of a disk.
    pub fn open(disk: &Arc<dyn Disk>, context: &mut Context<'_>) -> Self {
        Self::new(disk.open_channel(context))
    }

    /// Submits a request.
    #[inline]
    pub fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        self.is_used = true;
        let outcome = self.channel.submit(context, request);
        self.in_flight += usize::from(matches!(outcome, SubmitOutcome::Pending));
        outcome
    }

    /// Moves completed requests into `out`. Returns whether others are in flight.
    #[inline]
    pub fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) -> bool {
        if self.is_used {
            let before = out.len();
            self.channel.reap(context, out);
            self.in_flight = self.in_flight.saturating_sub(out.len() - before);
            self.is_used = self.in_flight > 0;
        }
        self.is_used
    }

    /// Returns the number of requests that wait for their storage.
    pub fn waiting(&self) -> usize {
        self.channel.waiting()
    }

    /// Fails requests that wait for their storage, because the queue drains.
    pub fn fail_stalled(&mut self, context: &mut Context<'_>) {
        self.channel.fail_stalled(context);
    }

    /// Abandons the channel.
    pub fn abandon(&mut self) {
        self.channel.abandon();
    }
}
