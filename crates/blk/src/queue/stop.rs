//! How serving a ring ends: drained, held still, or given up.

use std::sync::mpsc::SyncSender;

use reactor::Context;

use super::BlkQueue;

impl BlkQueue {
    /// Takes no more requests; answers when those in flight have ended, and those that a former
    /// life has left.
    pub(crate) fn stop(&mut self, context: &mut Context<'_>, answer: Option<SyncSender<u16>>) {
        self.stopping = true;
        self.giving_up = true;
        self.stopped = answer;
        self.channel.fail_stalled(context);
    }

    /// As [`Self::stop`], but what waits goes on waiting, and [`Self::unquiesce`] ends it.
    pub(crate) fn quiesce(&mut self, answer: SyncSender<u16>) {
        self.stopping = true;
        self.stopped = Some(answer);
    }

    /// Takes requests again.
    pub(crate) fn unquiesce(&mut self) {
        self.stopping = false;
        self.stopped = None;
    }

    /// Its driver has broken the ring: whoever goes on with it serves nothing of it.
    pub(crate) fn is_broken(&self) -> bool {
        self.queue.failed()
    }

    /// Touches the ring and the guest's signals no more; returns how many requests are in flight,
    /// and the available index behind them. The queue ends when the last of them does.
    pub(crate) fn abandon_ring(&mut self, context: &mut Context<'_>) -> (u16, u16) {
        self.zombie = true;
        self.channel.abandon();
        self.queue.fail();
        for peer_notifier in [self.call.take(), self.err.take()].into_iter().flatten() {
            context.close_bell(peer_notifier);
        }
        let waiting = self.held.take().or_else(|| self.throttled_request.take());
        if let Some(request) = waiting
            && let Some(entry) = self.in_flight.take(request.tag)
        {
            self.queue.push(entry.chain, 0);
        }
        (self.queue.in_flight(), self.queue.next_avail())
    }

    /// Requests of a former life are still to be taken. A ring that has failed yields none.
    pub(super) fn has_recovered(&self) -> bool {
        !self.queue.failed() && self.queue.recovering()
    }

    /// Writes no more records, once.
    pub(super) fn end_records(&mut self) {
        if !std::mem::replace(&mut self.silent, true) {
            self.latency_recorder.puts_down(&self.stats.stages);
            self.stats.recorder.ends();
        }
    }
}

impl Drop for BlkQueue {
    /// What is in flight stays on record in the in-flight region, for a successor.
    fn drop(&mut self) {
        self.end_records();
        for entry in self.in_flight.drain() {
            entry.chain.abandon();
        }
    }
}
