//! One turn: who is asked, and who stays hot.

use super::{Core, PollerSlot};
use crate::clock::Clock;
use crate::clock_ns;
use crate::context::{Context, PollOutcome, Poller, PollerId};
use crate::spin::SpinGuards;

/// Turns that find nothing before readers are told how long they took.
const TELL_EVERY: u32 = 4096;

impl Core {
    /// Asks every hot poller once; true when one of them found work.
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

    /// Asks one poller. Whether it stays hot, which it does not when it went cold or ended, and
    /// whether it found work.
    fn turn_one(&mut self, id: PollerId) -> (bool, bool) {
        let Some(poller_slot) = self.resident(id) else { return (false, false) };
        let Some(mut poller) = poller_slot.poller.take() else { return (false, false) };
        // What a turn finds is there since its begin: the work itself is no wait.
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
        // Taken out of `self` by parts: all four are needed at once.
        let Self { residents, clock, guards, .. } = self;
        let poller_slot = residents.get_mut(id.index).filter(|r| r.generation == id.generation);
        let Some(poller_slot) = poller_slot else { return (false, true) };
        let stays = match poll_outcome {
            PollOutcome::Busy => {
                if let Some(wait_tracker) =
                    poller_slot.wait_tracker.as_mut().filter(|wait_tracker| wait_tracker.waits())
                    && let Some(poll_control) = poller.polling()
                {
                    let found = if timed { began } else { clock.now() };
                    wait_tracker.finds_work(poll_control, found, guards);
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

    /// A letter is there. `slept`: since when this thread slept, if it did; a bell that was rung
    /// before has not woken it.
    pub(crate) fn woken_by_letter(&mut self, slept: Option<u64>) {
        let rung = self.mailbox.rung_at();
        if slept.is_some_and(|since| rung > since) {
            self.guards.woke(clock_ns().saturating_sub(rung).max(1));
        }
    }

    /// A turn is over. `idle`: it found nothing, and the next one follows at once.
    #[inline]
    pub(crate) fn end_turn(&mut self, idle: bool) {
        if idle {
            self.idle_turns += 1;
            if self.idle_turns == 1 {
                // The time of this turn is not taken for it: the next one's is, if there is one.
            } else if self.idle_since == 0 {
                self.idle_since = self.clock.now();
            } else if self.idle_turns >= TELL_EVERY {
                self.tell_spun();
                self.idle_since = self.clock.now();
            }
        } else {
            if self.idle_since > 0 {
                self.tell_spun();
            }
            self.idle_turns = 0;
        }
    }

    fn tell_spun(&mut self) {
        let since = std::mem::take(&mut self.idle_since);
        self.idle_turns = 1;
        let now = self.clock.now();
        self.counters().add_spun(now.saturating_sub(since));
    }
}

/// One that found nothing is to be asked again at once, because that pays.
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
    wait_tracker.finds_nothing(poll_control, poller.waits_for(), clock, guards)
}
