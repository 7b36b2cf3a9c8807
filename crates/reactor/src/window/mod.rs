//! Chooses how long a wait is worth spinning for, from the waits so far.
//!
//! A queue without work waits for its driver or for its device. Sleeping costs the next request a
//! wake-up; spinning costs CPU time until the request comes. [`PollWindow`] learns from each wait
//! and returns how long to spin for the next one. It knows neither clock nor queue, so a recorded
//! trace of waits drives it as a reactor does.
//!
//! # The rule
//! A hit may cost at most the [`WindowSettings::max_ns`] that its owner grants. The cost is the
//! time spun over the recent waits, divided by the waits that ended within the spin. Of all windows
//! within that limit, the window chooses the one with the largest gain. So waits that always take
//! 50 us are spun through. Random arrivals 200 us apart on average are not, since every window pays
//! 200 us for each hit. Of bursts with pauses, the gaps are spun through and the pauses are not.
//!
//! # Sleeping and spinning
//! A wait that was slept through ends late, by a wake-up that can be longer than the wait itself.
//! So it only roughly shows the cost of a spin: enough to exclude a spin that cannot pay. A window
//! begins asleep. After some waits it spins through a few completely ([`PROBE`]) if the waits, less
//! the wake-up, suggest that this could pay. The decision depends on the probe alone. If a sleep
//! ends without a probe that pays, the next sleep is twice as long. Since a wake-up can take longer
//! than is known, some probes ([`PATIENCE`]) happen whatever the waits suggest.

#[cfg(test)]
mod tests;
mod wait_histogram;

use wait_histogram::WaitHistogram;

/// Waits that a probe spins through.
const PROBE: u32 = 8;
/// Waits that are slept through before the first probe.
const FIRST: u32 = 32;
/// Consecutive sleeps that may end without a probe.
const PATIENCE: u32 = 3;
/// Waits that are slept through between two probes: at first, and at most.
const SLEEPS: u32 = 128;
const SLEEPS_MAX: u32 = 8192;
/// Waits after which the window is chosen anew.
const REVIEW: u32 = 16;
/// Consecutive reviews that must pay before the next sleep is a short one again: fewer are chance.
const PROVEN: u32 = 16;
/// Fraction of the allowed cost that a hit may have when spinning begins, so that a window at the
/// limit does not oscillate.
const ENTER: (u64, u64) = (3, 4);

/// Settings of a window, from the owner of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSettings {
    /// Longest spin, and the most that a hit may cost, in nanoseconds; 0 never spins.
    pub max_ns: u64,
}

impl Default for WindowSettings {
    /// Returns 128 us. This is above the cost of a wake-up on any machine that was measured. It is
    /// below the gap at which a mostly idle queue would use a whole CPU.
    fn default() -> Self {
        Self { max_ns: 128_000 }
    }
}

/// Reason for the current window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowVerdict {
    /// No waits are known yet: the first ones are slept through.
    Unknown,
    /// A few waits are spun through to measure their cost.
    Probing,
    /// Waits are short enough to spin through.
    Pays,
    /// Waits are too long or too uncertain.
    TooLong,
    /// Spinning is turned off.
    Off,
}

/// One observed wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSample {
    /// Time from the moment without work to the moment with work, in nanoseconds.
    pub took_ns: u64,
    /// Part of that time spent spinning, in nanoseconds; 0 if the queue slept at once.
    pub spun_ns: u64,
    /// Part of that time that the wake-up may have taken, in nanoseconds.
    pub woken_ns: u64,
}

impl WaitSample {
    /// Returns whether the wait ended during the spin.
    pub fn hit(&self) -> bool {
        self.spun_ns > 0 && self.took_ns <= self.spun_ns
    }
}

/// Spin window of one kind of wait, see the module documentation.
#[derive(Clone, Debug)]
pub struct PollWindow {
    settings: WindowSettings,
    verdict: WindowVerdict,
    window_ns: u64,
    /// Waits left in this probe, review or sleep.
    left: u32,
    /// Length of the next sleep in waits.
    sleeps: u32,
    /// Consecutive reviews that paid.
    paid: u32,
    /// Consecutive sleeps that ended without a probe.
    passed: u32,
    /// Waits that were spun through; during a sleep, estimates of those slept through.
    wait_histogram: WaitHistogram,
}

impl PollWindow {
    /// Creates a window that begins asleep.
    pub fn new(settings: WindowSettings) -> Self {
        let mut window = Self {
            settings,
            verdict: WindowVerdict::Off,
            window_ns: 0,
            left: 0,
            sleeps: SLEEPS,
            paid: 0,
            passed: 0,
            wait_histogram: WaitHistogram::default(),
        };
        window.set(settings);
        window
    }

    /// Changes the settings and forgets the waits so far.
    pub fn set(&mut self, settings: WindowSettings) {
        self.settings = settings;
        (self.sleeps, self.passed) = (SLEEPS, 0);
        let off = settings.max_ns == 0;
        self.rest(if off { WindowVerdict::Off } else { WindowVerdict::Unknown }, FIRST);
    }

    /// Returns the settings.
    pub fn settings(&self) -> WindowSettings {
        self.settings
    }

    /// Returns how long to spin in the wait that begins now, in nanoseconds; 0 to sleep.
    pub fn spin_ns(&self) -> u64 {
        self.window_ns
    }

    /// Returns the reason for the current window.
    pub fn verdict(&self) -> WindowVerdict {
        self.verdict
    }

    /// Adds a wait. A wait that was not spun through although [`Self::spin_ns`] allowed it, because
    /// a guard forbade it, is ignored.
    pub fn ended(&mut self, wait: WaitSample) {
        match self.verdict {
            WindowVerdict::Off => {}
            WindowVerdict::Unknown | WindowVerdict::TooLong => {
                self.wait_histogram.add(wait.took_ns.saturating_sub(wait.woken_ns));
                self.left = self.left.saturating_sub(1);
                if self.left == 0 {
                    self.end_sleep();
                }
            }
            WindowVerdict::Probing | WindowVerdict::Pays => {
                if wait.spun_ns == 0 {
                    return;
                }
                self.wait_histogram.add(wait.took_ns);
                self.left = self.left.saturating_sub(1);
                if self.left == 0 {
                    self.review();
                }
            }
        }
    }

    fn rest(&mut self, verdict: WindowVerdict, waits: u32) {
        self.wait_histogram = WaitHistogram::default();
        self.verdict = verdict;
        self.window_ns = 0;
        self.left = waits;
    }

    /// Begins another sleep and doubles the length of the next one.
    fn sleep_again(&mut self) {
        self.rest(WindowVerdict::TooLong, self.sleeps);
        self.sleeps = (self.sleeps * 2).min(SLEEPS_MAX);
    }

    /// Ends a sleep with a probe or another sleep.
    fn end_sleep(&mut self) {
        let max = self.settings.max_ns;
        if self.passed < PATIENCE
            && self.wait_histogram.best(max, max / ENTER.1 * ENTER.0).is_none()
        {
            self.passed += 1;
            self.sleep_again();
        } else {
            self.passed = 0;
            self.probe();
        }
    }

    fn probe(&mut self) {
        self.wait_histogram = WaitHistogram::default();
        self.verdict = WindowVerdict::Probing;
        self.window_ns = self.settings.max_ns;
        self.left = PROBE;
        self.paid = 0;
    }

    fn review(&mut self) {
        let max = self.settings.max_ns;
        let price = match self.verdict {
            WindowVerdict::Pays => max,
            _ => max / ENTER.1 * ENTER.0,
        };
        match self.wait_histogram.best(max, price) {
            Some(window) => {
                self.verdict = WindowVerdict::Pays;
                self.window_ns = window;
                self.left = REVIEW;
                self.paid = self.paid.saturating_add(1);
                if self.paid == PROVEN {
                    self.sleeps = SLEEPS;
                }
            }
            None => self.sleep_again(),
        }
    }
}
