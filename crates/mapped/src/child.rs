//! Channels of other disks, which cost nothing while they have no request.

use std::sync::Arc;

use ::disk::{Channel, Completion, Disk, SubmitOutcome};
use reactor::Context;

/// Channel of another disk.
pub(crate) struct Child {
    channel: Box<dyn Channel>,
    in_flight: usize,
    /// True if it has had a request since the last [`Self::reap`], or has one now.
    is_used: bool,
}

impl Child {
    /// Creates a child that has no request.
    pub(crate) fn new(channel: Box<dyn Channel>) -> Self {
        Self { channel, in_flight: 0, is_used: false }
    }

    /// Opens a channel of a disk.
    pub(crate) fn open(disk: &Arc<dyn Disk>, context: &mut Context<'_>) -> Self {
        Self::new(disk.open_channel(context))
    }

    /// Submits a request.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        context: &mut Context<'_>,
        request: ::disk::Request,
    ) -> SubmitOutcome {
        self.is_used = true;
        let outcome = self.channel.submit(context, request);
        self.in_flight += usize::from(matches!(outcome, SubmitOutcome::Pending));
        outcome
    }

    /// Moves completed requests into `out`. Returns whether others are in flight.
    #[inline]
    pub(crate) fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) -> bool {
        if self.is_used {
            let before = out.len();
            self.channel.reap(context, out);
            self.in_flight = self.in_flight.saturating_sub(out.len() - before);
            self.is_used = self.in_flight > 0;
        }
        self.is_used
    }

    /// Fails requests that wait for their storage, because the queue drains.
    pub(crate) fn fail_stalled(&mut self, context: &mut Context<'_>) {
        self.channel.fail_stalled(context);
    }

    /// Abandons the channel.
    pub(crate) fn abandon(&mut self) {
        self.channel.abandon();
    }
}
