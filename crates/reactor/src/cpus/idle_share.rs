//! Free CPU time, computed from successive readings, and its distribution among reactors.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::quota::{self, CpuQuotas};
use super::stat::Idle;

/// Intervals that count: the kernel reports idle time in hundredths of a second.
const INTERVALS: usize = 4;
/// Shortest interval: a shorter one is too inexact.
const SHORTEST: Duration = Duration::from_millis(20);

/// Reactor that wants to spin, and the CPU time it has used in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpinDemand {
    pub(super) tid: i32,
    pub(super) used_ns: u64,
}

/// One reading of all inputs.
#[derive(Debug)]
struct Reading {
    at: Instant,
    idle: Idle,
    /// Reactors that want to spin, in the order in which they began to.
    spin_demand: Vec<SpinDemand>,
    limits: CpuQuotas,
}

/// Interval between two readings.
#[derive(Debug)]
struct Interval {
    elapsed_ns: u64,
    free_ns: u64,
    /// CPU time that the tightest quota leaves; `None` without a quota.
    left_ns: Option<u64>,
}

/// Meter of free CPU time over the last intervals.
#[derive(Debug, Default)]
pub(super) struct IdleMeter {
    last: Option<Reading>,
    intervals: VecDeque<Interval>,
}

impl IdleMeter {
    /// Adds a reading: idle times of the usable CPUs, the reactors that want to spin, and the
    /// quotas.
    pub(super) fn add(
        &mut self,
        at: Instant,
        idle: Idle,
        mut spin_demand: Vec<SpinDemand>,
        limits: CpuQuotas,
    ) {
        if let Some(last) = &self.last {
            let elapsed = at.saturating_duration_since(last.at);
            if elapsed < SHORTEST {
                return;
            }
            // Reactors that wanted to spin before come first.
            let rank =
                |one: &SpinDemand| last.spin_demand.iter().position(|former| former.tid == one.tid);
            spin_demand.sort_by_key(|one| rank(one).unwrap_or(usize::MAX));
            let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            let used_ns = used(last, &spin_demand);
            self.intervals.push_back(Interval {
                elapsed_ns,
                free_ns: free(last, &idle).saturating_add(used_ns),
                left_ns: quota::left(&last.limits, &limits, elapsed_ns, used_ns),
            });
            if self.intervals.len() > INTERVALS {
                self.intervals.pop_front();
            }
        }
        self.last = Some(Reading { at, idle, spin_demand, limits });
    }

    /// Returns the thousandths of a CPU that are free for the reactor with thread `tid`, if each
    /// reactor before it has as much. Returns `None` while that is unknown.
    pub(super) fn share(&self, tid: i32) -> Option<u32> {
        let elapsed: u64 = self.intervals.iter().map(|one| one.elapsed_ns).sum();
        let free: u64 = self.intervals.iter().map(|one| one.free_ns).sum();
        let rank = self.rank(tid)?;
        let all = u128::from(free) * 1000 / u128::from(elapsed).max(1);
        let known = !self.intervals.is_empty();
        known.then(|| u32::try_from(all / (rank as u128 + 1)).unwrap_or(u32::MAX - 1))
    }

    /// Returns whether the quotas leave a whole CPU for the reactor with thread `tid` and for each
    /// one before it. A spinning thread uses a whole CPU and cannot share it. Returns true while
    /// that is unknown.
    pub(super) fn has_quota(&self, tid: i32) -> bool {
        let Some(rank) = self.rank(tid) else { return true };
        let limited = self.intervals.iter().filter_map(|one| Some((one.left_ns?, one.elapsed_ns)));
        let sum = |(left, of), (more, time)| (left + u128::from(more), of + u128::from(time));
        let (left, elapsed) = limited.fold((0u128, 0u128), sum);
        if let Some(cpus) = left.checked_div(elapsed) {
            return cpus > rank as u128;
        }
        // Without readings, the quota alone can show that it leaves too little.
        let limits = self.last.iter().flat_map(|last| last.limits.values());
        limits.map(|limit| limit.permille / 1000).all(|cpus| cpus > rank as u64)
    }

    /// Returns the rank of a reactor among those that want to spin.
    fn rank(&self, tid: i32) -> Option<usize> {
        self.last.as_ref()?.spin_demand.iter().position(|one| one.tid == tid)
    }
}

/// Returns the time for which a CPU was idle.
fn free(last: &Reading, idle: &Idle) -> u64 {
    let idle = idle.iter().filter_map(|(cpu, now)| {
        // A CPU that came or went in the interval is not counted.
        last.idle.get(cpu).map(|before| now.saturating_sub(*before))
    });
    idle.fold(0, u64::saturating_add)
}

/// Returns the CPU time that the reactors that want to spin have used.
fn used(last: &Reading, spin_demand: &[SpinDemand]) -> u64 {
    let used = spin_demand.iter().filter_map(|one| {
        let before = last.spin_demand.iter().find(|former| former.tid == one.tid)?;
        Some(one.used_ns.saturating_sub(before.used_ns))
    });
    used.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(100);
    const MS: u64 = 1_000_000;

    /// Readings of two CPUs whose idle time grows by `idle_ms` a step together.
    fn measure(steps: u64, idle_ms: u64, used_ms: &[(i32, u64)]) -> IdleMeter {
        let (mut idle_meter, begin) = (IdleMeter::default(), Instant::now());
        for step in 0..=steps {
            let idle = Idle::from([(0, step * idle_ms * MS), (3, 77)]);
            let of = |(tid, ms): &(i32, u64)| SpinDemand { tid: *tid, used_ns: step * ms * MS };
            idle_meter.add(
                begin + STEP * step as u32,
                idle,
                used_ms.iter().map(of).collect(),
                CpuQuotas::new(),
            );
        }
        idle_meter
    }

    #[test]
    fn one_measure_says_nothing() {
        assert_eq!(measure(0, 0, &[(7, 50)]).share(7), None);
        assert_eq!(IdleMeter::default().share(7), None);
    }

    #[test]
    fn what_is_idle_or_its_own_is_free() {
        assert_eq!(measure(1, 0, &[(7, 90)]).share(7), Some(900));
        assert_eq!(measure(9, 60, &[(7, 40)]).share(7), Some(1000));
        assert_eq!(measure(1, 0, &[(7, 0)]).share(7), Some(0));
        assert_eq!(measure(1, 50, &[(7, 0)]).share(8), None);
    }

    #[test]
    fn of_two_the_first_is_served_first() {
        let mut idle_meter = measure(3, 10, &[(7, 90)]);
        let last = idle_meter.last.as_ref().unwrap();
        let at = last.at + STEP;
        let used = last.spin_demand[0].used_ns;
        // The newcomer is listed first and ranks second.
        let spin_demand =
            vec![SpinDemand { tid: 5, used_ns: 0 }, SpinDemand { tid: 7, used_ns: used + 90 * MS }];
        idle_meter.add(at, Idle::from([(0, 40 * MS), (3, 77)]), spin_demand, CpuQuotas::new());
        assert_eq!((idle_meter.share(7), idle_meter.share(5)), (Some(1000), Some(500)));
    }

    #[test]
    fn cpus_that_come_and_go_and_counters_that_fall_are_nothing() {
        let mut idle_meter = measure(1, 0, &[(7, 90)]);
        let at = idle_meter.last.as_ref().unwrap().at;
        idle_meter.add(
            at + STEP,
            Idle::from([(9, u64::MAX)]),
            vec![SpinDemand { tid: 7, used_ns: 0 }],
            CpuQuotas::new(),
        );
        assert_eq!(idle_meter.share(7), Some(450));
        // A reading without elapsed time, or from an earlier time, is ignored.
        idle_meter.add(at, Idle::new(), Vec::new(), CpuQuotas::new());
        assert_eq!(idle_meter.share(7), Some(450));
        idle_meter.add(at + STEP * 2, Idle::from([(9, 5)]), Vec::new(), CpuQuotas::new());
        assert_eq!(idle_meter.share(7), None, "it does not want to any more");
    }

    #[test]
    fn of_a_quota_each_has_a_whole_cpu() {
        let (mut idle_meter, begin) = (IdleMeter::default(), Instant::now());
        let add = |idle_meter: &mut IdleMeter, step: u64, permille: u64, others_ms: u64| {
            let spin_demand = [7, 8].map(|tid| SpinDemand { tid, used_ns: step * 50 * MS });
            let used_ns = step * (100 + others_ms) * MS;
            let limit = quota::CpuQuota { permille, throttled: 0, used_ns };
            let limits = CpuQuotas::from([("/g".into(), limit)]);
            let at = begin + STEP * step as u32;
            idle_meter.add(at, Idle::from([(0, step * 100 * MS)]), spin_demand.to_vec(), limits);
            (idle_meter.has_quota(7), idle_meter.has_quota(8))
        };
        assert!(idle_meter.has_quota(7), "nothing is known");
        assert_eq!(add(&mut idle_meter, 0, 999, 0), (false, false));
        assert!(idle_meter.has_quota(9), "it does not want any");
        assert_eq!(add(&mut idle_meter, 1, 2000, 0), (true, true));
        assert_eq!(add(&mut idle_meter, 2, 2000, 10), (true, false), "others use some of it");
        (3..9).for_each(|step| _ = add(&mut idle_meter, step, 2000, 0));
        assert_eq!(add(&mut idle_meter, 9, 2000, 0), (true, true));
        (10..14).for_each(|step| _ = add(&mut idle_meter, step, 900, 0));
        assert_eq!(add(&mut idle_meter, 14, 900, 0), (false, false));
        assert_eq!(idle_meter.share(7), Some(2000), "CPUs there would be");
        assert_eq!(add(&mut idle_meter, 15, u64::MAX, 0), (true, true));
    }
}
