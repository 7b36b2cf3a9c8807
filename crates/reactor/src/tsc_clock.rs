//! Clock that reads the CPU's time stamp counter, under a lease of the kernel's clock.
//!
//! A reading of the kernel's clock takes longer than all other measurements of a request on a fast
//! disk. The counter takes a quarter of that time, but its rate is not guaranteed. A virtual
//! machine that migrates may find another counter on the new host. So the counter only continues a
//! reading of the kernel's clock, for [`LEASE_NS`] at most, at the rate of the last such readings.
//! An error is at most that large. It ends when the counter has counted that time, which takes at
//! most ten times as long ([`RATES`]). Time never goes back. If the counter may stop, or there is
//! none, each reading comes from the kernel.

use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::Instant;

/// Longest time for which a reading of the kernel's clock is continued.
const LEASE_NS: u64 = 1_000_000;
/// Shortest distance of two readings that give a rate: each is exact to about 50 ns.
const RATE_FROM_NS: u64 = 10_000_000;
/// Time after which the rate is measured anew, since the kernel's clock is steered.
const RATE_UNTIL_NS: u64 = 1_000_000_000;
/// Ticks that a reading of the kernel's clock may take. A longer reading was interrupted.
const READ_TICKS_MAX: u64 = 10_000;
/// Inverse of the largest relative change of the rate. A larger change means another counter.
const SAME_RATE: u64 = 1000;
/// Binary digits of a rate after the point.
const FRACTION: u32 = 32;
/// Plausible nanoseconds per tick of a counter: 10 MHz to 10 GHz. Any other rate comes from a jump,
/// and a lease at that rate would last too long.
const RATES: RangeInclusive<u64> = (1 << FRACTION) / 10..=100 << FRACTION;

static BASE: OnceLock<Instant> = OnceLock::new();

/// Returns the begin of this process's clock.
pub(crate) fn base() -> Instant {
    *BASE.get_or_init(Instant::now)
}

/// Returns the time now, in nanoseconds of the clock that all reactors of this process share. Never
/// 0.
pub fn clock_ns() -> u64 {
    u64::try_from(base().elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Clock for one thread.
#[derive(Debug)]
pub(crate) struct ThreadClock {
    lease: Lease,
    /// True if there is a counter that runs at a constant rate.
    steady: bool,
    last: u64,
}

impl Default for ThreadClock {
    fn default() -> Self {
        Self { lease: Lease::default(), steady: counter::is_steady(), last: 1 }
    }
}

impl ThreadClock {
    /// Returns the time now, see [`clock_ns`]; never less than the previous result.
    #[inline]
    pub(crate) fn read(&mut self) -> u64 {
        self.read_of(counter::now, clock_ns)
    }

    #[inline]
    fn read_of(&mut self, counter: impl Fn() -> u64, kernel: impl Fn() -> u64) -> u64 {
        let now = match self.lease.at(counter()) {
            Some(now) => now,
            None => self.ask(counter, kernel),
        };
        self.last = self.last.max(now);
        self.last
    }

    #[cold]
    fn ask(&mut self, counter: impl Fn() -> u64, kernel: impl Fn() -> u64) -> u64 {
        let before = counter();
        let now = kernel();
        if self.steady {
            self.lease.renew(before, now, counter());
        }
        now
    }
}

/// Reading of the kernel's clock, and how long it may be continued.
#[derive(Debug, Default)]
struct Lease {
    ticks: u64,
    ns: u64,
    /// Ticks from then on for which the lease is valid.
    holds: u64,
    /// Nanoseconds per tick, with [`FRACTION`]; 0 if unknown.
    rate: u64,
    /// Ticks and nanoseconds from which the next rate is measured.
    from: Option<(u64, u64)>,
}

impl Lease {
    #[inline]
    fn at(&self, ticks: u64) -> Option<u64> {
        // A counter that went back wraps around, so that it exceeds the lease as well.
        let passed = ticks.wrapping_sub(self.ticks);
        (passed < self.holds).then(|| self.ns + ((passed * self.rate) >> FRACTION))
    }

    /// Renews the lease: the kernel's clock was `ns` when the counter was between `before` and
    /// `after`.
    fn renew(&mut self, before: u64, ns: u64, after: u64) {
        self.holds = 0;
        if after.wrapping_sub(before) > READ_TICKS_MAX {
            return;
        }
        let passed = self
            .from
            .and_then(|(ticks, then)| Some((after.checked_sub(ticks)?, ns.checked_sub(then)?)));
        match passed {
            Some((_, time)) if time < RATE_FROM_NS => {}
            Some((ticks, time)) => {
                self.found_rate(ticks, time);
                if time >= RATE_UNTIL_NS || self.rate == 0 {
                    self.from = Some((after, ns));
                }
            }
            None => (self.from, self.rate) = (Some((after, ns)), 0),
        }
        // The later of the two counts: the continued time lags behind the kernel's clock.
        (self.ticks, self.ns) = (after, ns);
        self.holds = (LEASE_NS << FRACTION).checked_div(self.rate).unwrap_or(0);
    }

    fn found_rate(&mut self, ticks: u64, time: u64) {
        let rate = (u128::from(time) << FRACTION).checked_div(ticks.into());
        let rate = rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(0);
        let usable = RATES.contains(&rate);
        let same = self.rate == 0 || rate.abs_diff(self.rate) <= self.rate / SAME_RATE;
        self.rate = if usable && same { rate } else { 0 };
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    const POWER: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    #[inline]
    pub(super) fn now() -> u64 {
        // SAFETY: every x86-64 CPU has the instruction, and Linux lets user code execute it. Where
        // an administrator forbids that, programs that use the vDSO do not run either.
        unsafe { _rdtsc() }
    }

    /// Returns whether the counter has a constant rate and never stops (Intel SDM, volume 3,
    /// 17.17.1).
    pub(super) fn is_steady() -> bool {
        __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT_TSC != 0
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn now() -> u64 {
        0
    }

    pub(super) fn is_steady() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns a lease that was renewed every 2 ms from a counter with `ticks_per_us`, until it is
    /// valid.
    fn leased(ticks_per_us: u64) -> Lease {
        let mut lease = Lease::default();
        for us in (0..=20_000).step_by(2000) {
            lease.renew(us * ticks_per_us, us * 1000, us * ticks_per_us + 20);
        }
        lease
    }

    #[test]
    fn a_reading_is_continued_at_the_rate_of_the_last_ones_and_not_for_long() {
        for ticks_per_us in [25, 1000, 2500, 7000] {
            let lease = leased(ticks_per_us);
            let now = 20_000 * ticks_per_us;
            assert_eq!(lease.at(now + 20), Some(20_000_000));
            let later = lease.at(now + 500 * ticks_per_us).unwrap();
            assert!(later.abs_diff(20_500_000) <= 1000, "{later} at {ticks_per_us}");
            assert_eq!(lease.at(now + 1010 * ticks_per_us), None);
        }
        assert_eq!(Lease::default().at(0), None);
    }

    #[test]
    fn a_counter_that_jumps_is_believed_for_a_lease_at_most() {
        let mut lease = leased(2500);
        for jump in [0, 1, 50_000_000 - 1, 1 << 63, u64::MAX] {
            assert!(lease.at(jump).is_none_or(|ns| ns < 21_000_000), "{jump}");
        }
        // The counter went back, or is another one: no lease until its rate is known.
        lease.renew(5, 30_000_000, 10);
        assert_eq!(lease.at(11), None);
        lease.renew(100_000, 35_000_000, 100_010);
        assert_eq!(lease.at(100_011), None);
        lease.renew(1_000_000, 75_000_000, 1_000_020);
        assert!(lease.at(1_000_030).is_some());
        // The rate of the counter changes.
        lease.renew(9_000_000, 95_000_000, 9_000_020);
        assert_eq!(lease.at(9_000_021), None);
    }

    #[test]
    fn an_interrupted_reading_gives_no_lease_and_no_rate() {
        let mut lease = leased(2500);
        let rate = lease.rate;
        lease.renew(60_000_000, 25_000_000, 90_000_000);
        assert_eq!((lease.at(90_000_001), lease.rate), (None, rate));
        for ticks in [0, u64::MAX] {
            let mut lease = leased(2500);
            lease.renew(ticks, u64::MAX, ticks);
            lease.renew(ticks, 0, ticks);
            assert_eq!(lease.at(ticks), None);
        }
    }

    #[test]
    fn time_is_the_kernels_and_never_goes_back() {
        let mut source = ThreadClock::default();
        let mut last = 0;
        let until = clock_ns() + 40_000_000;
        while last < until {
            let before = clock_ns();
            let now = source.read();
            let after = clock_ns();
            // A reading that was delayed just short of rejection gives a rate that is too high: by
            // 4 us in 10 ms if a tick is 0.4 ns.
            assert!(now >= last && now <= after + 10_000, "{now} after {last}, kernel {after}");
            assert!(now + 100_000 >= before, "{now} is behind {before}");
            last = now;
        }
    }

    /// Host whose counter behaves arbitrarily, while the kernel's clock continues. Each reading of
    /// either takes a while.
    struct Host {
        ticks: Cell<u64>,
        ns: Cell<u64>,
        ticks_per_us: Cell<u64>,
        rest: Cell<u64>,
    }

    impl Host {
        fn new() -> Self {
            let cell = Cell::new;
            Self { ticks: cell(1), ns: cell(1), ticks_per_us: cell(2500), rest: cell(0) }
        }

        fn passes(&self, ns: u64) {
            self.ns.set(self.ns.get() + ns);
            let ticks = self.rest.get() + ns * self.ticks_per_us.get();
            self.ticks.set(self.ticks.get().wrapping_add(ticks / 1000));
            self.rest.set(ticks % 1000);
        }

        fn read(&self, source: &mut ThreadClock) -> u64 {
            let advance = |clock: &Cell<u64>| {
                self.passes(25);
                clock.get()
            };
            source.read_of(|| advance(&self.ticks), || advance(&self.ns))
        }
    }

    /// Counter rates of different hosts.
    const TICKS_PER_US: [u64; 4] = [1000, 2500, 2501, 5000];
    /// Largest error of the time: a lease at the wrong rate, which lasts up to ten times as long.
    const OFF_NS: u64 = 10 * LEASE_NS + 10_000;

    #[test]
    fn whatever_the_counter_does_time_goes_on_and_stays_near_the_kernels() {
        let (host, mut source) =
            (Host::new(), ThreadClock { steady: true, ..ThreadClock::default() });
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 20
        };
        let (mut last, mut leased) = (0, 0);
        for _ in 0..200_000 {
            host.passes(random() % 20_000);
            match random() % 400 {
                0 => host.ticks.set(random() << 20),
                1 => host.ticks.set(host.ticks.get().wrapping_sub(random() % 3_000_000)),
                2 => host.ticks.set(host.ticks.get().wrapping_add(random() % 3_000_000)),
                3 => host.ticks_per_us.set(TICKS_PER_US[random() as usize % TICKS_PER_US.len()]),
                4 => host.passes(random() % 5_000_000_000),
                5 => host.ticks.set(u64::MAX - random() % 1_000_000),
                _ => {}
            }
            let asked = host.ns.get();
            let now = host.read(&mut source);
            assert!(now >= last, "{now} after {last}");
            assert!(now <= host.ns.get() + OFF_NS, "{now}, and it is {}", host.ns.get());
            assert!(now + OFF_NS >= asked, "{now}, and it is {asked}");
            last = now;
            leased += u64::from(source.lease.holds > 0);
        }
        assert!(leased > 20_000, "the counter was believed {leased} times");
    }

    #[test]
    fn a_look_that_has_a_limit_ends_though_the_counter_jumps() {
        const LIMIT_NS: u64 = 128_000;
        let jumps: [fn(u64) -> u64; 5] = [
            |ticks| ticks,
            |_| 0,
            |_| u64::MAX,
            |ticks| ticks.wrapping_sub(1_000_000),
            |ticks| ticks.wrapping_add(1 << 40),
        ];
        for jump in jumps {
            for rate in TICKS_PER_US {
                let (host, mut source) =
                    (Host::new(), ThreadClock { steady: true, ..ThreadClock::default() });
                while source.lease.holds == 0 {
                    host.passes(2_000_000);
                    host.read(&mut source);
                }
                let until = host.read(&mut source) + LIMIT_NS;
                let began = host.ns.get();
                host.ticks.set(jump(host.ticks.get()));
                host.ticks_per_us.set(rate);
                while host.read(&mut source) < until {
                    assert!(host.ns.get() - began < LIMIT_NS + OFF_NS, "it does not end");
                }
            }
        }
    }
}
