//! Stop of a ring: drain, quiesce, or abandon.

use std::sync::mpsc::SyncSender;

use reactor::Context;

use super::BlkQueue;

impl BlkQueue {
    /// Stops taking requests. Answers when all requests in flight, and those that a former process
    /// left, have ended.
    pub(crate) fn stop(&mut self, context: &mut Context<'_>, answer: Option<SyncSender<u16>>) {
        self.stopping = true;
        self.begin_trial();
        self.failing_stalled = true;
        self.stop_reply = answer;
        self.channel.fail_stalled(context);
    }

    /// Stops taking requests without failing waiting ones. [`Self::unquiesce`] reverts it.
    pub(crate) fn quiesce(&mut self, answer: SyncSender<u16>) {
        self.stopping = true;
        self.begin_trial();
        self.stop_reply = Some(answer);
    }

    /// Takes requests again.
    pub(crate) fn unquiesce(&mut self) {
        self.stopping = false;
        self.stop_reply = None;
    }

    /// Returns whether the driver has broken the ring. A successor serves nothing of such a ring.
    pub(crate) fn is_broken(&self) -> bool {
        self.queue.failed()
    }

    /// Stops all access to the ring and the guest's eventfds. Returns the number of requests in
    /// flight and the available index behind them. The queue ends when the last of them ends.
    pub(crate) fn abandon_ring(&mut self, context: &mut Context<'_>) -> (u16, u16) {
        self.abandoned = true;
        self.trial = None;
        self.channel.abandon();
        self.queue.fail();
        for peer_notifier in [self.call.take(), self.err.take()].into_iter().flatten() {
            context.close_notifier(peer_notifier);
        }
        let waiting = self.rejected_request.take().or_else(|| self.throttled_request.take());
        if let Some(request) = waiting
            && let Some(entry) = self.in_flight.take(request.tag)
        {
            self.queue.push(entry.chain, 0);
        }
        (self.queue.in_flight(), self.queue.next_avail())
    }

    /// Returns whether requests that a former process left are still to be popped. A failed ring
    /// yields none.
    pub(super) fn has_recovered(&self) -> bool {
        !self.queue.failed() && self.queue.recovering()
    }

    /// Writes the last statistics, once.
    pub(super) fn end_records(&mut self) {
        if !std::mem::replace(&mut self.stats_closed, true) {
            self.latency_recorder.flush_counts(&self.stats.stages);
            self.stats.recorder.ends();
        }
    }
}

impl Drop for BlkQueue {
    /// Leaves in-flight requests in the in-flight region, for a successor.
    fn drop(&mut self) {
        self.end_records();
        for entry in self.in_flight.drain() {
            entry.chain.abandon();
        }
    }
}
