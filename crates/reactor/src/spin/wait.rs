//! One wait of a poller, from the turn that finds nothing to the one that finds work.

use super::budget::Budget;
use super::wait_share::WaitShare;
use super::{PollControl, PollMode, PollPolicy, PollReason, SpinGuards, SpinRefusal, WaitTarget};
use crate::clock::Clock;
use crate::{PollSettings, PollVerdict, PollWait, PollWindow};

/// A window without an end.
const FOR_EVER: u64 = u64::MAX;
/// Looks without a limit before readers are told how long they took.
const TELL_EVERY: u32 = 4096;

/// Where a poller is between two pieces of work. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    /// It looks for the first time, and is to look for so long.
    Begun {
        since: u64,
        window: u64,
    },
    /// It looks since one time, and until another.
    Looking {
        since: u64,
        until: u64,
    },
    /// It looked for some time, or not at all, and waits to be woken.
    Sleeping {
        since: u64,
        looked: u64,
    },
}

/// What a reactor knows of the waits of one poller.
#[derive(Debug)]
pub(crate) struct WaitTracker {
    phase: Phase,
    /// The policy that the windows are set to.
    packed: u64,
    policy: PollPolicy,
    driver: PollWindow,
    device: PollWindow,
    /// The present wait is for the device.
    for_device: bool,
    /// Up to when it was told how long it looked.
    told: u64,
    looks: u32,
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
            told: 0,
            looks: 0,
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
            // What was learnt holds as long as waits are judged by the same.
            if window.settings() != settings {
                window.set(settings);
            }
        }
    }

    fn window(&mut self) -> &mut PollWindow {
        if self.for_device { &mut self.device } else { &mut self.driver }
    }

    /// It waits, so that work ends something.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.phase != Phase::Working
    }

    /// The time of its next turn's begin will be asked for, whatever that finds.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        !matches!(self.phase, Phase::Working | Phase::Looking { until: FOR_EVER, .. })
    }

    /// A turn has found nothing. True: it is to be asked again at once.
    pub(crate) fn finds_nothing(
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
            Phase::Working => self.begins(poll_control, wait_target, clock, guards),
            Phase::Sleeping { .. } => false,
            Phase::Begun { since, window } => {
                // Only now: the time between the end of a batch and the first look was no look's.
                let now = clock.now();
                let until = now.saturating_add(window);
                self.phase = Phase::Looking { since, until };
                (self.told, self.looks) = (now, 0);
                true
            }
            Phase::Looking { until: FOR_EVER, .. } => {
                self.looks += 1;
                if self.looks >= TELL_EVERY {
                    let now = clock.now();
                    poll_control.spun(self.looked(now));
                }
                true
            }
            Phase::Looking { since, until } => {
                let now = clock.now();
                if now < until {
                    return true;
                }
                let looked = self.looked(now);
                poll_control.missed(looked);
                self.budget.wasted(looked);
                guards.spun(now, looked);
                self.phase = Phase::Sleeping { since, looked };
                false
            }
        }
    }

    fn begins(
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
            _ => self.decides(since, guards),
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
                self.phase = Phase::Sleeping { since, looked: 0 };
                false
            }
        }
    }

    /// For how long to look, and why; or why not, if that is known yet.
    fn decides(
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
        // Else a disk that takes 70 us for each of 5,000 requests a second would have a third of a
        // CPU for a tenth of its latency.
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

    /// For how long it has looked since that was told last.
    fn looked(&mut self, now: u64) -> u64 {
        self.looks = 0;
        now.saturating_sub(std::mem::replace(&mut self.told, now))
    }

    /// A turn has found work at `now`: the wait is over.
    pub(crate) fn finds_work(
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
            Phase::Looking { since, .. } => {
                let took = now.saturating_sub(since);
                let looked = self.looked(now);
                poll_control.hit(looked, guards.wake_ns);
                guards.spun(now, looked);
                // It ended while it was looked for, however late that was seen.
                (took, took.max(1))
            }
            Phase::Sleeping { since, looked } => (now.saturating_sub(since), looked),
        };
        self.share.add(took_ns, self.for_device);
        // Twice the least that a waking takes.
        let woken_ns = if spun_ns < took_ns { 2 * guards.wake_ns } else { 0 };
        self.window().ended(PollWait { took_ns, spun_ns, woken_ns });
    }
}
