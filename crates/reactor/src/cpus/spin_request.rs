//! Request of a reactor for a CPU to spin on.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::thread::{Pid, gettid, sched_getaffinity};

/// Value of [`SpinRequest::free_permille`] before the first measurement.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Request of a reactor for a CPU to spin on. The reactor writes when it wanted to spin, and reads
/// how much CPU is free.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct SpinRequest {
    requested_at_ns: AtomicU64,
    /// Free thousandths of a CPU.
    free: AtomicU32,
    /// True if a quota is the reason that no CPU is free.
    by_quota: AtomicBool,
    tid: AtomicI32,
}

impl Default for SpinRequest {
    fn default() -> Self {
        Self {
            requested_at_ns: AtomicU64::new(0),
            free: AtomicU32::new(UNKNOWN),
            by_quota: AtomicBool::new(false),
            tid: AtomicI32::new(0),
        }
    }
}

impl SpinRequest {
    /// Records the calling thread as the thread of this reactor.
    pub(super) fn bind_thread(&self) {
        self.tid.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// Records that the reactor wants to spin, at `now` of [`crate::clock_ns`].
    #[inline]
    pub(crate) fn request(&self, now: u64) {
        self.requested_at_ns.store(now, Ordering::Relaxed);
        super::wake_monitor();
    }

    /// Returns the thousandths of a CPU that are free for this reactor; the maximum while that is
    /// unknown.
    #[inline]
    pub(crate) fn free_permille(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Returns whether no CPU is free because the quota of a control group leaves none.
    #[cold]
    pub(crate) fn is_by_quota(&self) -> bool {
        self.by_quota.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn publish_for_test(&self, free: u32, by_quota: bool) {
        self.publish(free, by_quota);
    }

    pub(super) fn publish(&self, free: u32, by_quota: bool) {
        self.by_quota.store(by_quota, Ordering::Relaxed);
        self.free.store(free, Ordering::Relaxed);
    }

    /// Returns whether the reactor wanted to spin within `within` nanoseconds before `now`.
    pub(super) fn wanted_since(&self, now: u64, within: u64) -> bool {
        let requested_at_ns = self.requested_at_ns.load(Ordering::Relaxed);
        requested_at_ns > 0 && now.saturating_sub(requested_at_ns) < within
    }

    pub(super) fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Returns the CPU time that the reactor's thread has used, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        // The clock of a thread's scheduled time, encoded as the C library does
        // (linux/posix-timers.h).
        let clock = (!self.tid() << 3) | 6;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes a whole `timespec`, or nothing for a thread that is gone.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
        seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
    }

    /// Returns the time that the thread was ready to run and had no CPU, in nanoseconds.
    pub(crate) fn cpu_wait_ns(&self) -> Option<u64> {
        // Its fields are time on a CPU, time in a run queue, and time slices (sched-stats.rst).
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.tid()));
        text.ok()?.split_whitespace().nth(1)?.parse().ok()
    }

    /// Returns the numbers of the CPUs that the thread may use.
    pub(super) fn cpus(&self) -> Vec<u32> {
        let Some(set) = Pid::from_raw(self.tid()).and_then(|tid| sched_getaffinity(Some(tid)).ok())
        else {
            return Vec::new();
        };
        (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .map(|cpu| cpu as u32)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_what_it_used_and_may_use() {
        let spin_request = SpinRequest::default();
        spin_request.bind_thread();
        let before = spin_request.cpu_ns();
        let mut sum = 0u64;
        for one in 0..5_000_000u64 {
            sum = std::hint::black_box(sum + one);
        }
        assert!(spin_request.cpu_ns() > before);
        let all = spin_request.cpus();
        let mut one = rustix::thread::CpuSet::new();
        one.set(all[0] as usize);
        // The affinity changes only for the test's own thread, which ends with the test.
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        assert_eq!(spin_request.cpus(), all[..1], "asked anew each time");
    }

    #[test]
    fn a_thread_that_shares_its_cpu_waits_for_it() {
        let spin_request = SpinRequest::default();
        spin_request.bind_thread();
        let mut one = rustix::thread::CpuSet::new();
        one.set(spin_request.cpus()[0] as usize);
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A new thread has the affinity of this one.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let before = spin_request.cpu_wait_ns().unwrap();
            while spin_request.cpu_wait_ns().unwrap() == before {
                std::hint::spin_loop();
            }
            over.store(true, Ordering::Relaxed);
        });
        let gone = SpinRequest::default();
        assert_eq!(gone.cpu_wait_ns(), None);
    }

    #[test]
    fn one_that_never_wished_does_not_want_to() {
        let spin_request = SpinRequest::default();
        assert!(!spin_request.wanted_since(5, 1_000));
        spin_request.requested_at_ns.store(5, Ordering::Relaxed);
        assert!(spin_request.wanted_since(5, 1_000) && spin_request.wanted_since(0, 1_000));
        assert!(!spin_request.wanted_since(1_005, 1_000));
    }
}
