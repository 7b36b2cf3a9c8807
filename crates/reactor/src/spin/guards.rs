//! Conditions that forbid a reactor to spin, because a spin takes CPU time from other threads.
//!
//! - Too little CPU is free: `cpus` measures that for the whole machine while a reactor wants to
//!   spin.
//! - The quota of a control group leaves none: measured together with the first.
//! - Another thread wants this very CPU: the kernel preempts the spin again and again. Otherwise a
//!   front-end on the same CPU would wait for the end of each spin. The sign is the thread's
//!   involuntary context switches. After them nothing spins for a while, each time longer.

use std::sync::Arc;

use super::SpinRefusal;
use crate::cpus::SpinRequest;

/// Spin time after which the switches are judged, in nanoseconds.
const JUDGED_NS: u64 = 1_000_000;
/// Longest time over which that spin time is added up: spread over more time it does no harm.
const WITHIN_NS: u64 = 4_000_000;
/// Fewer switches than this are normal.
const SWITCHES_MIN: u64 = 2;
/// Pauses in nanoseconds, at first and at most.
const PAUSE_NS: u64 = 20_000_000;
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// Guards of one reactor.
#[derive(Debug)]
pub(crate) struct SpinGuards {
    spin_request: Arc<SpinRequest>,
    cpu_contention: CpuContention,
    /// Time up to which spins were counted.
    counted_to: u64,
    /// Cost of a wake-up in nanoseconds; 0 while that is unknown.
    pub(crate) wake_ns: u64,
}

impl SpinGuards {
    pub(crate) fn new(spin_request: Arc<SpinRequest>) -> Self {
        Self { spin_request, cpu_contention: CpuContention::default(), counted_to: 0, wake_ns: 0 }
    }

    /// Guards of a thread whose CPU no other thread wants.
    #[cfg(test)]
    pub(super) fn alone(spin_request: Arc<SpinRequest>) -> Self {
        let mut guards = Self::new(spin_request);
        guards.cpu_contention.read = || 0;
        guards
    }

    /// Returns whether a spin may begin at `now`, if `idle_percent` of a CPU must be free for it.
    #[inline]
    pub(super) fn allow(&mut self, now: u64, idle_percent: u8) -> Result<(), SpinRefusal> {
        self.spin_request.request(now);
        if self.spin_request.free_permille() < u32::from(idle_percent) * 10 {
            let by_quota = self.spin_request.is_by_quota();
            return Err(if by_quota { SpinRefusal::QuotaUsed } else { SpinRefusal::NoFreeCpu });
        }
        if self.cpu_contention.forbids(now) {
            return Err(SpinRefusal::CpuWanted);
        }
        Ok(())
    }

    /// Records that a spin of `ns` ended at `now`. Simultaneous spins of several pollers count
    /// once.
    #[inline]
    pub(super) fn spun(&mut self, now: u64, ns: u64) {
        let ns = ns.min(now.saturating_sub(self.counted_to));
        self.counted_to = now;
        self.cpu_contention.spun(now, ns);
    }

    /// Records that it took `ns` from a signal until this thread ran. The least such time is the
    /// cost of a wake-up; longer ones have other causes too.
    pub(crate) fn woke(&mut self, ns: u64) {
        self.wake_ns = match self.wake_ns {
            0 => ns,
            known if ns < known => ns,
            known => known + (ns - known) / 16,
        };
    }
}

/// Detects whether other threads want this CPU.
#[derive(Debug)]
struct CpuContention {
    /// Returns the number of involuntary switches.
    read: fn() -> u64,
    /// Time of the last count, and the number of switches then.
    from: u64,
    switches: u64,
    /// Time spun since then.
    spun: u64,
    until: u64,
    pause: u64,
}

impl Default for CpuContention {
    fn default() -> Self {
        Self { read: switches, from: 0, switches: 0, spun: 0, until: 0, pause: 0 }
    }
}

impl CpuContention {
    #[inline]
    fn forbids(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.from) > WITHIN_NS {
            self.counts(now, (self.read)());
        }
        now < self.until
    }

    fn counts(&mut self, now: u64, switches: u64) {
        (self.from, self.switches, self.spun) = (now, switches, 0);
    }

    #[inline]
    fn spun(&mut self, now: u64, ns: u64) {
        self.spun += ns;
        if self.spun >= JUDGED_NS {
            self.judge(now, (self.read)());
        }
    }

    fn judge(&mut self, now: u64, switches: u64) {
        let unwanted = switches.saturating_sub(self.switches);
        if unwanted >= SWITCHES_MIN && unwanted.saturating_mul(JUDGED_NS) >= self.spun {
            self.pause = (self.pause * 2).clamp(PAUSE_NS, PAUSE_MAX_NS);
            self.until = now.saturating_add(self.pause);
        } else {
            self.pause = 0;
        }
        self.counts(now, switches);
    }
}

/// Returns how often the kernel preempted this thread (involuntary context switches).
fn switches() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes a whole `rusage` or nothing, and zeroes are a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_in_spins_forbid_them_for_longer_and_longer() {
        let mut cpu_contention = CpuContention::default();
        let mut now = 1_000;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            cpu_contention.counts(now, 0);
            cpu_contention.spun = JUDGED_NS;
            cpu_contention.judge(now, 8);
            assert!(cpu_contention.until > now);
            pauses.push(cpu_contention.until - now);
            now = cpu_contention.until;
        }
        assert_eq!(pauses[..3], [PAUSE_NS, 2 * PAUSE_NS, 4 * PAUSE_NS]);
        assert_eq!(pauses[7], PAUSE_MAX_NS);
        cpu_contention.counts(now, 8);
        cpu_contention.spun = 3 * JUDGED_NS;
        cpu_contention.judge(now, 10);
        assert!(cpu_contention.until <= now, "two in three milliseconds are anybody's");
        cpu_contention.counts(now, 10);
        cpu_contention.spun = JUDGED_NS;
        cpu_contention.judge(now, 12);
        assert_eq!(cpu_contention.until - now, PAUSE_NS, "it begins anew");
    }

    #[test]
    fn spins_at_the_same_time_count_once() {
        let mut guards = SpinGuards::new(Arc::default());
        guards.cpu_contention.counts(1_000, 0);
        for _ in 0..8 {
            guards.spun(1_000 + JUDGED_NS / 2, JUDGED_NS / 2);
        }
        assert_eq!(guards.cpu_contention.spun, JUDGED_NS / 2);
        guards.spun(1_000 + JUDGED_NS * 3 / 4, JUDGED_NS / 2);
        assert_eq!(guards.cpu_contention.spun, JUDGED_NS * 3 / 4, "the part that was not counted");
    }

    #[test]
    fn the_kernel_counts_switches() {
        let before = switches();
        assert!(switches() >= before);
    }

    #[test]
    fn a_waking_costs_the_least_that_was_seen_or_a_little_more() {
        let mut guards = SpinGuards::new(Arc::default());
        for (took, known) in [(30_000, 30_000), (10_000, 10_000), (26_000, 11_000)] {
            guards.woke(took);
            assert_eq!(guards.wake_ns, known);
        }
    }
}
