//! One wait of a poller, from the turn that finds no work to the one that finds work.

use super::budget::Budget;
use super::wait_share::WaitShare;
use super::{PollControl, PollMode, PollPolicy, PollReason, SpinGuards, SpinRefusal, WaitTarget};
use crate::clock::Clock;
use crate::{PollSettings, PollVerdict, PollWait, PollWindow};

/// Window without an end.
const FOR_EVER: u64 = u64::MAX;
/// Polls of an endless spin after which the time spun is published.
const PUBLISH_EVERY: u32 = 4096;

/// Phase of a poller between two pieces of work. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    /// The poller spins for the first time, for at most `window`.
    Begun {
        since: u64,
        window: u64,
    },
    /// The poller has spun since one time and may spin until another.
    Spinning {
        since: u64,
        until: u64,
    },
    /// The poller has spun for some time, or not at all, and waits for its wake-up.
    Sleeping {
        since: u64,
        spun_ns: u64,
    },
}

/// Tracker of the waits of one poller.
#[derive(Debug)]
pub(crate) struct WaitTracker {
    phase: Phase,
    /// Packed policy that the windows are configured for.
    packed: u64,
    policy: PollPolicy,
    driver: PollWindow,
    device: PollWindow,
    /// True if the current wait is for the device.
    for_device: bool,
    /// Time up to which the time spun was published.
    published: u64,
    polls: u32,
    budget: Budget,
    share: WaitShare,
}

impl WaitTracker {
    pub(crate) fn new(poll_control: &PollControl) -> Self {
        let none = PollWindow::new(PollSettings { max_ns: 0 });
        let packed = poll_control.packed();
        let mut wait_tracker = Self {
            phase: Phase::Working,
            packed,
            policy: PollPolicy::unpack(packed),
            driver: none.clone(),
            device: none,
            for_device: false,
            published: 0,
            polls: 0,
            budget: Budget::default(),
            share: WaitShare::default(),
        };
        wait_tracker.set(packed);
        wait_tracker
    }

    fn set(&mut self, packed: u64) {
        self.packed = packed;
        self.policy = PollPolicy::unpack(packed);
        let max_ns = if self.policy.mode == PollMode::Auto { self.policy.max_ns } else { 0 };
        let settings = PollSettings { max_ns };
        for window in [&mut self.driver, &mut self.device] {
            // Keep what the windows have learnt as long as their settings stay the same.
            if window.settings() != settings {
                window.set(settings);
            }
        }
    }

    fn window(&mut self) -> &mut PollWindow {
        if self.for_device { &mut self.device } else { &mut self.driver }
    }

    /// Returns whether the poller waits, so that work ends a wait.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.phase != Phase::Working
    }

    /// Returns whether the next turn reads the time at its begin in any case.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        !matches!(self.phase, Phase::Working | Phase::Spinning { until: FOR_EVER, .. })
    }

    /// Records a turn without work. Returns whether the poller is to be polled again at once.
    pub(crate) fn poll_idle(
        &mut self,
        poll_control: &PollControl,
        wait_target: WaitTarget,
        clock: &mut Clock,
        guards: &mut SpinGuards,
    ) -> bool {
        let packed = poll_control.packed();
        if packed != self.packed {
            self.set(packed);
            self.phase = Phase::Working;
        }
        if wait_target == WaitTarget::Event {
            self.phase = Phase::Working;
            return false;
        }
        match self.phase {
            Phase::Working => self.begin_wait(poll_control, wait_target, clock, guards),
            Phase::Sleeping { .. } => false,
            Phase::Begun { since, window } => {
                // Only now: the time between the end of a batch and the first poll does not count
                // as spinning.
                let now = clock.now();
                let until = now.saturating_add(window);
                self.phase = Phase::Spinning { since, until };
                (self.published, self.polls) = (now, 0);
                true
            }
            Phase::Spinning { until: FOR_EVER, .. } => {
                self.polls += 1;
                if self.polls >= PUBLISH_EVERY {
                    let now = clock.now();
                    poll_control.spun(self.take_spun(now));
                }
                true
            }
            Phase::Spinning { since, until } => {
                let now = clock.now();
                if now < until {
                    return true;
                }
                let spun_ns = self.take_spun(now);
                poll_control.missed(spun_ns);
                self.budget.wasted(spun_ns);
                guards.spun(now, spun_ns);
                self.phase = Phase::Sleeping { since, spun_ns };
                false
            }
        }
    }

    fn begin_wait(
        &mut self,
        poll_control: &PollControl,
        wait_target: WaitTarget,
        clock: &mut Clock,
        guards: &mut SpinGuards,
    ) -> bool {
        if self.policy.mode == PollMode::Off {
            poll_control.shows(PollReason::Off, 0);
            return false;
        }
        let since = clock.idle_since();
        self.for_device = wait_target == WaitTarget::Device;
        let decided = match self.policy.mode {
            PollMode::Always => Ok((FOR_EVER, PollReason::Always)),
            _ => self.decide(since, guards),
        };
        match decided {
            Ok((window, reason)) => {
                poll_control.shows(reason, since);
                self.phase = Phase::Begun { since, window };
                true
            }
            Err(spin_refusal) => {
                poll_control
                    .shows(spin_refusal.map_or(PollReason::Unknown, PollReason::Refused), since);
                self.phase = Phase::Sleeping { since, spun_ns: 0 };
                false
            }
        }
    }

    /// Returns how long to spin and the reason, or the reason not to spin if that is known.
    fn decide(
        &mut self,
        now: u64,
        guards: &mut SpinGuards,
    ) -> Result<(u64, PollReason), Option<SpinRefusal>> {
        let window = self.window();
        let (spin, verdict) = (window.spin_ns(), window.verdict());
        if spin == 0 {
            let unknown = verdict == PollVerdict::Unknown;
            return Err(if unknown { None } else { Some(SpinRefusal::TooLong) });
        }
        // Otherwise a disk with 5,000 requests a second of 70 us each would use a third of a CPU to
        // gain a tenth of its latency.
        if self.for_device && !self.share.is_mostly_device() {
            return Err(Some(SpinRefusal::TooLong));
        }
        guards.allow(now, self.policy.idle_percent)?;
        if !self.budget.allows(now) {
            return Err(Some(SpinRefusal::BudgetUsed));
        }
        let probing = verdict == PollVerdict::Probing;
        let reason = if probing { PollReason::Probing } else { PollReason::Pays };
        Ok((spin, reason))
    }

    /// Returns the time spun since it was last published.
    fn take_spun(&mut self, now: u64) -> u64 {
        self.polls = 0;
        now.saturating_sub(std::mem::replace(&mut self.published, now))
    }

    /// Records that a turn found work at `now`, which ends the wait.
    pub(crate) fn poll_found_work(
        &mut self,
        poll_control: &PollControl,
        now: u64,
        guards: &mut SpinGuards,
    ) {
        let phase = std::mem::replace(&mut self.phase, Phase::Working);
        let (took_ns, spun_ns) = match phase {
            Phase::Working => return,
            Phase::Begun { since, window } => {
                let took = now.saturating_sub(since);
                poll_control.hit(took.min(window), guards.wake_ns);
                guards.spun(now, took.min(window));
                (took, took.max(1))
            }
            Phase::Spinning { since, .. } => {
                let took = now.saturating_sub(since);
                let spun_ns = self.take_spun(now);
                poll_control.hit(spun_ns, guards.wake_ns);
                guards.spun(now, spun_ns);
                // The wait ended during the spin, however late the poller noticed.
                (took, took.max(1))
            }
            Phase::Sleeping { since, spun_ns } => (now.saturating_sub(since), spun_ns),
        };
        self.share.add(took_ns, self.for_device);
        // Twice the least cost of a wake-up.
        let woken_ns = if spun_ns < took_ns { 2 * guards.wake_ns } else { 0 };
        self.window().ended(PollWait { took_ns, spun_ns, woken_ns });
    }
}
