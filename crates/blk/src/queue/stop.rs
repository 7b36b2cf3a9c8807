//! Stop of a ring: drain, quiesce, or abandon.

use std::sync::mpsc::SyncSender;

use error_causes::error_chain;
use reactor::Context;
use virtq::Inflight;

use super::BlkQueue;

/// Fate of the requests that wait for space on the storage when the queue stops.
#[derive(Debug)]
pub(super) enum Stalled {
    /// They wait.
    Wait,
    /// They fail, or stay in the front-end's in-flight region.
    Fail,
    /// They stay recorded for another process when nothing else is in flight: in the front-end's
    /// region, or else in this one.
    HandOver(Option<Inflight>),
    /// They stay recorded. The channel is abandoned.
    HandedOver,
}

impl BlkQueue {
    /// Stops taking requests. Answers when all requests in flight, and those that a former process
    /// left, have ended.
    pub(crate) fn stop(&mut self, context: &mut Context<'_>, answer: Option<SyncSender<u16>>) {
        self.stopping = true;
        self.begin_trial();
        self.stalled = Stalled::Fail;
        self.stop_reply = answer;
        self.channel.fail_stalled(context);
    }

    /// Stops taking requests without failing waiting ones. [`Self::unquiesce`] reverts it.
    pub(crate) fn quiesce(&mut self, answer: SyncSender<u16>) {
        self.stopping = true;
        self.begin_trial();
        self.stop_reply = Some(answer);
    }

    /// Quiesces like [`Self::quiesce`], and leaves waiting requests recorded for another process.
    pub(crate) fn hand_over(&mut self, answer: SyncSender<u16>, spare: Option<Inflight>) {
        self.quiesce(answer);
        self.stalled = Stalled::HandOver(spare);
    }

    /// Takes requests again.
    pub(crate) fn unquiesce(&mut self) {
        self.stopping = false;
        self.stalled = Stalled::Wait;
        self.stop_reply = None;
    }

    /// Leaves waiting requests recorded for another process, if it may and nothing else is in
    /// flight. All completions must be published.
    pub(super) fn leave_stalled(&mut self, context: &mut Context<'_>) {
        let Stalled::HandOver(spare) = &mut self.stalled else { return };
        let spare = spare.take();
        if !self.only_waits_for_space() || !self.has_record(spare.as_ref()) {
            self.stalled = Stalled::HandOver(spare);
            return;
        }
        if let Some(spare) = spare.filter(|_| !self.queue.is_recorded())
            && let Err(error) = self.queue.record_in(spare)
        {
            tracing::error!(disk = self.shared.id, "not recorded: {}", error_chain(&error));
            self.stalled = Stalled::Wait;
            return;
        }
        self.stalled = Stalled::HandedOver;
        // Nothing of it is with the kernel, so all of it ends at once.
        self.channel.abandon();
        let rejected = self.rejected_request.take();
        if let Some(entry) = rejected.and_then(|request| self.in_flight.take(request.tag)) {
            self.stalled_chains.push(entry.chain);
        }
        self.reap(context);
    }

    /// Returns whether all requests in flight wait for space, or for a buffer that such a request
    /// holds.
    fn only_waits_for_space(&self) -> bool {
        let waiting = self.channel.waiting();
        let all = waiting + usize::from(self.rejected_request.is_some());
        waiting > 0
            && usize::from(self.queue.in_flight()) == all
            && self.trial.is_none()
            && !self.has_recovered()
    }

    /// Returns whether a successor finds the requests in flight. It serves nothing of a broken ring.
    fn has_record(&self, spare: Option<&Inflight>) -> bool {
        self.queue.is_recorded() || self.queue.failed() || spare.is_some()
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
