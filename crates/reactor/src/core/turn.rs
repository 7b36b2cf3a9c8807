//! One turn of the loop: polls the hot pollers and decides which of them stay hot.

use super::{Core, PollerSlot};
use crate::clock::Clock;
use crate::clock_ns;
use crate::context::{Context, PollOutcome, Poller, PollerId};
use crate::spin::SpinGuards;

/// Turns without work after which the time spent in them is published.
const PUBLISH_EVERY: u32 = 4096;

impl Core {
    /// Polls every hot poller once. Returns whether one of them found work.
    pub(crate) fn turn(&mut self) -> bool {
        self.clock.turn_begins();
        self.counters().add_turn();
        let (mut at, mut worked) = (0, false);
        while let Some(id) = self.hot.get(at).copied() {
            let (stays, found) = self.turn_one(id);
            worked |= found;
            if stays {
                at += 1;
            } else {
                self.hot.swap_remove(at);
            }
        }
        worked
    }

    /// Polls one poller. Returns whether it stays hot and whether it found work. A poller that went
    /// cold or ended does not stay hot.
    fn turn_one(&mut self, id: PollerId) -> (bool, bool) {
        let Some(poller_slot) = self.resident(id) else { return (false, false) };
        let Some(mut poller) = poller_slot.poller.take() else { return (false, false) };
        // Work that a turn finds ends a wait at the begin of the turn: doing the work is no part of
        // the wait.
        let timed =
            poller_slot.wait_tracker.as_ref().is_some_and(|wait_tracker| wait_tracker.is_timed());
        let began = if timed { self.clock.now() } else { 0 };
        let label = poller.label();
        self.counters().set_serving(label);
        self.clock.poll_begins();
        let poll_outcome = poller.poll(&mut Context { core: self, current: Some(id) });
        self.clock.poll_ended(label);
        if poll_outcome == PollOutcome::Gone {
            drop(poller);
            self.remove_poller(id);
            return (false, true);
        }
        // Borrowed field by field: all of them are needed at the same time.
        let Self { pollers: residents, clock, guards, .. } = self;
        let poller_slot = residents.get_mut(id.index).filter(|r| r.generation == id.generation);
        let Some(poller_slot) = poller_slot else { return (false, true) };
        let stays = match poll_outcome {
            PollOutcome::Busy => {
                if let Some(wait_tracker) =
                    poller_slot.wait_tracker.as_mut().filter(|wait_tracker| wait_tracker.waits())
                    && let Some(poll_control) = poller.polling()
                {
                    let found = if timed { began } else { clock.now() };
                    wait_tracker.poll_found_work(poll_control, found, guards);
                }
                true
            }
            _ => {
                poller.always_polls()
                    || keep_polling(poller_slot, &*poller, clock, guards)
                    || poller.arm()
            }
        };
        poller_slot.poller = Some(poller);
        poller_slot.hot = stays;
        (stays, poll_outcome == PollOutcome::Busy)
    }

    /// Records how long the mailbox took to wake this thread. `slept` is the time at which the
    /// thread went to sleep, or `None`. A task sent before that time has not woken the thread.
    pub(crate) fn woken_by_letter(&mut self, slept: Option<u64>) {
        let rung = self.mailbox.rung_at();
        if slept.is_some_and(|since| rung > since) {
            self.guards.woke(clock_ns().saturating_sub(rung).max(1));
        }
    }

    /// Ends a turn. If `idle`, the turn found no work and the next one follows at once.
    #[inline]
    pub(crate) fn end_turn(&mut self, idle: bool) {
        if idle {
            self.idle_turns += 1;
            if self.idle_turns == 1 {
                // A reading only for this turn would cost too much: the next turn makes it, if
                // there is one.
            } else if self.idle_since == 0 {
                self.idle_since = self.clock.now();
            } else if self.idle_turns >= PUBLISH_EVERY {
                self.publish_spun();
                self.idle_since = self.clock.now();
            }
        } else {
            if self.idle_since > 0 {
                self.publish_spun();
            }
            self.idle_turns = 0;
        }
    }

    fn publish_spun(&mut self) {
        let since = std::mem::take(&mut self.idle_since);
        self.idle_turns = 1;
        let now = self.clock.now();
        self.counters().add_spun(now.saturating_sub(since));
    }
}

/// Returns whether a poller that found no work is to be polled again at once, because that pays.
fn keep_polling(
    poller_slot: &mut PollerSlot,
    poller: &dyn Poller,
    clock: &mut Clock,
    guards: &mut SpinGuards,
) -> bool {
    let Some((wait_tracker, poll_control)) =
        poller_slot.wait_tracker.as_mut().zip(poller.polling())
    else {
        return false;
    };
    wait_tracker.poll_idle(poll_control, poller.waits_for(), clock, guards)
}
