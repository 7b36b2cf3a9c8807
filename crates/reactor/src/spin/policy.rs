//! Between a poller's reactor and those who set or read how it waits.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Longest spin that may be set, in nanoseconds.
pub const POLL_MAX_NS: u64 = 10_000_000;

/// When a poller may spin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// Never.
    #[default]
    Off,
    /// When it pays, and nobody else wants the CPU.
    Auto,
    /// Without end: its reactor sleeps only while nothing but an event brings it on.
    Always,
}

/// What the owner of a disk sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollPolicy {
    /// When it may spin.
    pub mode: PollMode,
    /// Longest spin, and the most that a hit may cost in the mean, in nanoseconds; at most
    /// [`POLL_MAX_NS`].
    pub max_ns: u64,
    /// How much of a free CPU must be there for a reactor that spins, in percent.
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

/// What forbade a spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinRefusal {
    /// Waits are too long, or too uncertain, or those for the device are less than half of all time
    /// waited: it would not pay.
    TooLong,
    /// Too little of a CPU is free.
    NoFreeCpu,
    /// Somebody else wants this very CPU.
    CpuWanted,
    /// Spins that found nothing have taken what they may.
    BudgetUsed,
    /// The quota of a control group does not leave a CPU.
    QuotaUsed,
}

impl SpinRefusal {
    /// All of them, in the order of [`PollState::refused`].
    pub const ALL: [Self; 5] =
        [Self::TooLong, Self::NoFreeCpu, Self::CpuWanted, Self::BudgetUsed, Self::QuotaUsed];
}

/// How a poller waits now, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollReason {
    /// It has not waited yet, or too seldom to tell.
    #[default]
    Unknown,
    /// Spinning is turned off.
    Off,
    /// It always spins.
    Always,
    /// It spins a few waits to see what they cost.
    Probing,
    /// It spins: that pays.
    Pays,
    /// It sleeps.
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

/// How a poller has waited so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollState {
    /// What it did at its last wait, and why.
    pub reason: PollReason,
    /// When that wait began, on [`crate::clock_ns`]; of waits that were slept because polling is
    /// off nobody takes the time.
    pub waited_ns: u64,
    /// Waits that ended while it looked.
    pub hits: u64,
    /// Waits that it looked for and then slept through.
    pub misses: u64,
    /// Time for which it looked, in nanoseconds; others of its reactor may have worked meanwhile.
    pub spun_ns: u64,
    /// What waking up would have cost in all its hits, in nanoseconds; 0 while that is unknown.
    pub saved_ns: u64,
    /// Waits that were slept at once, by what forbade to spin, in the order of [`SpinRefusal::ALL`].
    pub refused: [u64; 5],
}

impl PollState {
    /// It spins when it has nothing to do.
    pub fn armed(&self) -> bool {
        matches!(self.reason, PollReason::Always | PollReason::Probing | PollReason::Pays)
    }

    /// Adds the counts of another; the reason is that of the one that has waited last.
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

/// Policy in, counts out. Its reactor writes the counts, and whoever has it sets the policy, at any
/// time: it holds from the next turn of a poller that is awake, and from its next waking else.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PollControl {
    policy: AtomicU64,
    reason: AtomicU8,
    /// When the wait began that the reason is of, if it was timed.
    waited: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    spun_ns: AtomicU64,
    saved_ns: AtomicU64,
    refused: [AtomicU64; 5],
}

/// One writer: no read-modify-write.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl PollControl {
    /// Changes what it may do. Larger values than may be set count as the largest.
    pub fn set(&self, policy: PollPolicy) {
        self.policy.store(policy.pack(), Ordering::Relaxed);
    }

    /// What it may do.
    pub fn policy(&self) -> PollPolicy {
        PollPolicy::unpack(self.packed())
    }

    /// What it did so far.
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

    /// What was done under another mode says nothing of this one.
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
