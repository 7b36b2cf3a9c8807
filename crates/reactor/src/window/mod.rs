//! How long a wait is worth spinning for, judged by the waits there were.
//!
//! A queue that has nothing to do waits: for its driver, or for its device. To sleep costs the next
//! request a wake-up; to spin costs the CPU the time until it comes. [`PollWindow`] is told of each
//! wait and says how long to spin for the next one. It knows neither clock nor queue, so a recorded
//! trace of waits drives it as a reactor does.
//!
//! # The rule
//! A hit may cost at most the [`WindowSettings::max_ns`] that its owner grants: over the waits of the
//! recent past, time spun divided by waits that ended within the spin. Of all windows that keep to
//! that, the one that gains most is taken. So a wait of 50 us is spun through when it always takes
//! 50 us; arrivals at random, 200 us apart in the mean, are not, since every window pays 200 us for
//! each hit; and of bursts with pauses the gaps are spun and the pauses are not.
//!
//! # Asleep and looking
//! A wait that was slept through ends late, by a wake-up that can be longer than the wait itself.
//! So it says only roughly what a spin would have cost: enough to leave one out that cannot pay.
//! A window begins asleep, and after some waits it spins a few to the full ([`PROBE`]) if these
//! waits, less the wake-up, look as if that could pay; it goes by the probe alone. A time asleep
//! that ends without a probe that pays makes the next one twice as long. Since a wake-up can take
//! longer than is known, some probes ([`PATIENCE`]) are made whatever the waits look like.
//!
//! Source: design 4.3; the documents' tapdisk3 spins a fixed time whatever comes (seed-facts 1.1).

#[cfg(test)]
mod tests;
mod wait_histogram;

use wait_histogram::WaitHistogram;

/// Waits that a probe spins through.
const PROBE: u32 = 8;
/// Waits that are slept before the first probe.
const FIRST: u32 = 32;
/// Times asleep in a row that may end without a probe.
const PATIENCE: u32 = 3;
/// Waits that are slept between two probes: at first, and at most.
const SLEEPS: u32 = 128;
const SLEEPS_MAX: u32 = 8192;
/// The choice is made anew after so many waits.
const REVIEW: u32 = 16;
/// After so many reviews that said yes, the next sleep is a short one again: fewer are chance.
const PROVEN: u32 = 16;
/// To begin, a hit must cost at most this part of what it may, so that a window at the border
/// does not come and go.
const ENTER: (u64, u64) = (3, 4);

/// What the owner of a disk sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSettings {
    /// Longest spin, and the most that a hit may cost, in nanoseconds; 0 never spins.
    pub max_ns: u64,
}

impl Default for WindowSettings {
    /// 128 us: above what a wake-up costs on any machine that was measured, below the gap at which
    /// a queue that is idle most of the time would burn a core.
    fn default() -> Self {
        Self { max_ns: 128_000 }
    }
}

/// Why a window is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowVerdict {
    /// Nothing is known yet: the first waits are slept.
    Unknown,
    /// A few waits are spun to see what they cost.
    Probing,
    /// Waits are short enough to spin.
    Pays,
    /// Waits are too long, or too uncertain.
    TooLong,
    /// Spinning is turned off.
    Off,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSample {
    /// From the moment with nothing to do to the moment at which there was something, nanoseconds.
    pub took_ns: u64,
    /// For how long of that the queue was looked at; 0 when it slept at once.
    pub spun_ns: u64,
    /// What of it may have been the waking, nanoseconds.
    pub woken_ns: u64,
}

impl WaitSample {
    /// It ended while the queue was looked at.
    pub fn hit(&self) -> bool {
        self.spun_ns > 0 && self.took_ns <= self.spun_ns
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct PollWindow {
    settings: WindowSettings,
    verdict: WindowVerdict,
    window_ns: u64,
    /// Waits left in this probe, this review or this sleep.
    left: u32,
    /// Length of the next sleep.
    sleeps: u32,
    /// Reviews in a row that said yes.
    paid: u32,
    /// Times asleep in a row that ended without a probe.
    passed: u32,
    /// Waits that were spun; asleep, what those were about that were not.
    wait_histogram: WaitHistogram,
}

impl PollWindow {
    /// A window that begins asleep.
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

    /// Changes the settings; what was learnt under others is forgotten.
    pub fn set(&mut self, settings: WindowSettings) {
        self.settings = settings;
        (self.sleeps, self.passed) = (SLEEPS, 0);
        let off = settings.max_ns == 0;
        self.rest(if off { WindowVerdict::Off } else { WindowVerdict::Unknown }, FIRST);
    }

    /// By what it judges.
    pub fn settings(&self) -> WindowSettings {
        self.settings
    }

    /// For how long to look at the queue in the wait that begins now, in nanoseconds; 0 to sleep.
    pub fn spin_ns(&self) -> u64 {
        self.window_ns
    }

    /// Why.
    pub fn verdict(&self) -> WindowVerdict {
        self.verdict
    }

    /// A wait has ended. One that was not spun though [`Self::spin_ns`] said so, since a guard
    /// forbade it, teaches nothing.
    pub fn ended(&mut self, wait: WaitSample) {
        match self.verdict {
            WindowVerdict::Off => {}
            WindowVerdict::Unknown | WindowVerdict::TooLong => {
                self.wait_histogram.add(wait.took_ns.saturating_sub(wait.woken_ns));
                self.left = self.left.saturating_sub(1);
                if self.left == 0 {
                    self.wake_up();
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

    /// Sleeps on, for twice as long the next time.
    fn rest_on(&mut self) {
        self.rest(WindowVerdict::TooLong, self.sleeps);
        self.sleeps = (self.sleeps * 2).min(SLEEPS_MAX);
    }

    /// The time asleep is over.
    fn wake_up(&mut self) {
        let max = self.settings.max_ns;
        if self.passed < PATIENCE
            && self.wait_histogram.best(max, max / ENTER.1 * ENTER.0).is_none()
        {
            self.passed += 1;
            self.rest_on();
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
            None => self.rest_on(),
        }
    }
}
