//! What forbids a reactor to spin: a spin is paid by whoever else wants the CPU.
//!
//! - Too little of a CPU is free: `cpus` measures that for the whole machine, while somebody wants
//!   to spin.
//! - The quota of a control group leaves none: measured with it.
//! - Somebody else wants this very CPU: the kernel takes it from the spin again and again. A front-end
//!   that shares the CPU would else wait for the end of each spin before it can go on. Seen by the
//!   switches that this thread did not want; then nothing spins for a while, each time longer.

use std::sync::Arc;

use super::SpinRefusal;
use crate::cpus::SpinRequest;

/// Spins are judged when they add up to this.
const JUDGED_NS: u64 = 1_000_000;
/// Spins that add up to it in a longer time do no harm that is worth a word.
const WITHIN_NS: u64 = 4_000_000;
/// As many switches are anybody's.
const SWITCHES_MIN: u64 = 2;
/// Pauses, at first and at most.
const PAUSE_NS: u64 = 20_000_000;
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// Guards of one reactor.
#[derive(Debug)]
pub(crate) struct SpinGuards {
    spin_request: Arc<SpinRequest>,
    cpu_contention: CpuContention,
    /// Up to when spins were counted.
    counted_to: u64,
    /// What it costs to be woken, in nanoseconds; 0 while that is unknown.
    pub(crate) wake_ns: u64,
}

impl SpinGuards {
    pub(crate) fn new(spin_request: Arc<SpinRequest>) -> Self {
        Self { spin_request, cpu_contention: CpuContention::default(), counted_to: 0, wake_ns: 0 }
    }

    /// Of a thread whose CPU nobody else wants.
    #[cfg(test)]
    pub(super) fn alone(spin_request: Arc<SpinRequest>) -> Self {
        let mut guards = Self::new(spin_request);
        guards.cpu_contention.read = || 0;
        guards
    }

    /// Whether a spin may begin at `now`, if `idle_percent` of a CPU must be free for it.
    #[inline]
    pub(super) fn allow(&mut self, now: u64, idle_percent: u8) -> Result<(), SpinRefusal> {
        self.spin_request.wishes(now);
        if self.spin_request.free_permille() < u32::from(idle_percent) * 10 {
            let by_quota = self.spin_request.is_by_quota();
            return Err(if by_quota { SpinRefusal::QuotaUsed } else { SpinRefusal::NoFreeCpu });
        }
        if self.cpu_contention.forbids(now) {
            return Err(SpinRefusal::CpuWanted);
        }
        Ok(())
    }

    /// A spin has ended at `now` and took `ns`. Those of several pollers at once are one.
    #[inline]
    pub(super) fn spun(&mut self, now: u64, ns: u64) {
        let ns = ns.min(now.saturating_sub(self.counted_to));
        self.counted_to = now;
        self.cpu_contention.spun(now, ns);
    }

    /// It took `ns` from a signal until this thread ran. The least is what a waking costs; one that
    /// took longer had other reasons too.
    pub(crate) fn woke(&mut self, ns: u64) {
        self.wake_ns = match self.wake_ns {
            0 => ns,
            known if ns < known => ns,
            known => known + (ns - known) / 16,
        };
    }
}

/// Whether others want this CPU.
#[derive(Debug)]
struct CpuContention {
    /// Tells the switches.
    read: fn() -> u64,
    /// When the switches were counted, and how many there were.
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

/// Times that the kernel gave this thread's CPU to another though it wanted to go on.
fn switches() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes a whole `rusage` or nothing, and zeroes are one.
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
