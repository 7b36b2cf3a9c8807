//! Policy and counters of busy polling, shared between a poller's reactor and other threads.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Longest spin that can be configured, in nanoseconds.
pub const POLL_MAX_NS: u64 = 10_000_000;

/// Mode of busy polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// The poller never spins.
    #[default]
    Off,
    /// The poller spins when that pays and no other thread wants the CPU.
    Auto,
    /// The poller spins without end: its reactor sleeps only while all its pollers wait for an
    /// event.
    Always,
}

/// Policy that the owner of a disk sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollPolicy {
    /// Mode of busy polling.
    pub mode: PollMode,
    /// Longest spin, and the most that a hit may cost on average, in nanoseconds; at most
    /// [`POLL_MAX_NS`].
    pub max_ns: u64,
    /// Share of a CPU that must be free for a spinning reactor, in percent.
    pub idle_percent: u8,
}

impl Default for PollPolicy {
    fn default() -> Self {
        let max_ns = crate::PollSettings::default().max_ns;
        Self { mode: PollMode::Off, max_ns, idle_percent: 75 }
    }
}

impl PollPolicy {
    fn pack(self) -> u64 {
        let percent = u64::from(self.idle_percent.min(100));
        self.mode as u64 | (percent << 8) | (self.max_ns.min(POLL_MAX_NS) << 16)
    }

    pub(super) fn unpack(packed: u64) -> Self {
        let mode = match packed & 0xff {
            0 => PollMode::Off,
            1 => PollMode::Auto,
            _ => PollMode::Always,
        };
        Self { mode, max_ns: packed >> 16, idle_percent: (packed >> 8) as u8 }
    }
}

/// Reason why a spin was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinRefusal {
    /// A spin would not pay: waits are too long or too uncertain, or waits for the device take less
    /// than half of all waiting time.
    TooLong,
    /// Too little of a CPU is free.
    NoFreeCpu,
    /// Another thread wants this very CPU.
    CpuWanted,
    /// Spins that found no work have used up their budget.
    BudgetUsed,
    /// The quota of a control group leaves no whole CPU.
    QuotaUsed,
}

impl SpinRefusal {
    /// All reasons, in the order of [`PollState::refused`].
    pub const ALL: [Self; 5] =
        [Self::TooLong, Self::NoFreeCpu, Self::CpuWanted, Self::BudgetUsed, Self::QuotaUsed];
}

/// State of a poller's waiting, with its reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollReason {
    /// The poller has not waited yet, or too seldom to decide.
    #[default]
    Unknown,
    /// Spinning is turned off.
    Off,
    /// The poller always spins.
    Always,
    /// The poller spins through a few waits to measure their cost.
    Probing,
    /// The poller spins because that pays.
    Pays,
    /// The poller sleeps.
    Refused(SpinRefusal),
}

impl PollReason {
    const ALL: [Self; 10] = [
        Self::Unknown,
        Self::Off,
        Self::Always,
        Self::Probing,
        Self::Pays,
        Self::Refused(SpinRefusal::TooLong),
        Self::Refused(SpinRefusal::NoFreeCpu),
        Self::Refused(SpinRefusal::CpuWanted),
        Self::Refused(SpinRefusal::BudgetUsed),
        Self::Refused(SpinRefusal::QuotaUsed),
    ];

    fn code(self) -> u8 {
        let at = Self::ALL.iter().position(|one| *one == self);
        at.unwrap_or_default() as u8
    }

    fn of(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or_default()
    }
}

/// Statistics of a poller's waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollState {
    /// State at the last wait, with its reason.
    pub reason: PollReason,
    /// Begin of that wait, on [`crate::clock_ns`]. Waits while polling is off are not timed.
    pub waited_ns: u64,
    /// Waits that ended during a spin.
    pub hits: u64,
    /// Waits that outlasted their spin and were then slept through.
    pub misses: u64,
    /// Time spent spinning, in nanoseconds. Other pollers of the reactor may have worked meanwhile.
    pub spun_ns: u64,
    /// Cost of the wake-ups that all hits avoided, in nanoseconds; 0 while that is unknown.
    pub saved_ns: u64,
    /// Waits that were slept through at once, by the reason against a spin, in the order of
    /// [`SpinRefusal::ALL`].
    pub refused: [u64; 5],
}

impl PollState {
    /// Returns whether the poller spins when it has no work.
    pub fn armed(&self) -> bool {
        matches!(self.reason, PollReason::Always | PollReason::Probing | PollReason::Pays)
    }

    /// Adds the counts of another poller. The reason is that of the poller that waited last.
    pub fn add(&mut self, other: &Self) {
        let later = other.waited_ns >= self.waited_ns && other.reason != PollReason::Unknown;
        if later || self.reason == PollReason::Unknown {
            (self.reason, self.waited_ns) = (other.reason, other.waited_ns);
        }
        self.hits += other.hits;
        self.misses += other.misses;
        self.spun_ns += other.spun_ns;
        self.saved_ns += other.saved_ns;
        for (sum, more) in self.refused.iter_mut().zip(other.refused) {
            *sum += more;
        }
    }
}

/// Control block of a poller's busy polling: policy in, counters out. The reactor writes the
/// counters. Any holder may set the policy at any time. A new policy applies from the next turn of
/// a poller that is awake, otherwise from its next wake-up.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PollControl {
    policy: AtomicU64,
    reason: AtomicU8,
    /// Begin of the wait that `reason` belongs to, if that wait was timed.
    waited: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    spun_ns: AtomicU64,
    saved_ns: AtomicU64,
    refused: [AtomicU64; 5],
}

/// Adds to a counter. With one writer, no read-modify-write is needed.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl PollControl {
    /// Changes the policy. Values above their limits are reduced to them.
    pub fn set(&self, policy: PollPolicy) {
        self.policy.store(policy.pack(), Ordering::Relaxed);
    }

    /// Returns the policy.
    pub fn policy(&self) -> PollPolicy {
        PollPolicy::unpack(self.packed())
    }

    /// Returns the state and the counters so far.
    pub fn state(&self) -> PollState {
        PollState {
            reason: self.reason(),
            waited_ns: self.waited.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            spun_ns: self.spun_ns.load(Ordering::Relaxed),
            saved_ns: self.saved_ns.load(Ordering::Relaxed),
            refused: self.refused.each_ref().map(|count| count.load(Ordering::Relaxed)),
        }
    }

    /// Returns the reason. A reason from another mode does not apply to the current one.
    fn reason(&self) -> PollReason {
        let reason = PollReason::of(self.reason.load(Ordering::Relaxed));
        match (self.policy().mode, reason) {
            (_, PollReason::Unknown) => reason,
            (PollMode::Off, _) => PollReason::Off,
            (PollMode::Auto, PollReason::Off | PollReason::Always) => PollReason::Unknown,
            _ => reason,
        }
    }

    pub(super) fn packed(&self) -> u64 {
        self.policy.load(Ordering::Relaxed)
    }

    pub(super) fn shows(&self, reason: PollReason, since: u64) {
        if since > 0 {
            self.waited.store(since, Ordering::Relaxed);
        }
        self.reason.store(reason.code(), Ordering::Relaxed);
        if let PollReason::Refused(by) = reason
            && let Some(count) = self.refused.get(by as usize)
        {
            bump(count, 1);
        }
    }

    pub(super) fn hit(&self, spun_ns: u64, saved_ns: u64) {
        bump(&self.hits, 1);
        bump(&self.spun_ns, spun_ns);
        bump(&self.saved_ns, saved_ns);
    }

    pub(super) fn spun(&self, spun_ns: u64) {
        bump(&self.spun_ns, spun_ns);
    }

    pub(super) fn missed(&self, spun_ns: u64) {
        bump(&self.misses, 1);
        bump(&self.spun_ns, spun_ns);
    }
}
