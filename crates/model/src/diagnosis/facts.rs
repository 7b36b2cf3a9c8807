//! Input of a diagnosis.

use crate::report::{DiskStats, ReactorStats, Stage, Stats};

/// Two samples of a process, and one of its disks.
#[derive(Clone, Copy, Debug)]
pub struct DiskFacts<'a> {
    before: Option<&'a DiskStats>,
    earlier: &'a Stats,
    pub(super) process: &'a Stats,
    /// Full statistics of the disk, as requested by its id.
    pub(super) disk: &'a DiskStats,
    /// Seconds between the samples, or since the start of the process if the earlier one does not
    /// fit.
    pub(super) seconds: f64,
}

/// Another disk on the same reactor, and its share of the thread's time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Busy<'a> {
    pub(super) disk: &'a str,
    pub(super) share: f64,
}

impl<'a> DiskFacts<'a> {
    /// Creates the facts. `earlier` and `now` are samples of the whole process. `disk` is the full
    /// statistics of one of its disks, taken with or after `now`.
    pub fn new(earlier: &'a Stats, now: &'a Stats, disk: &'a DiskStats) -> Self {
        let same = earlier.pid == now.pid;
        let find = |disks: &'a [DiskStats]| disks.iter().find(|one| one.id == disk.id);
        let passed = now.uptime_seconds - earlier.uptime_seconds;
        let fits = same && passed.is_finite() && passed > 0.0;
        let before = find(&earlier.disks).filter(|_| fits);
        // Without an earlier sample that fits, use all counts since the start.
        let all = if now.uptime_seconds.is_finite() { now.uptime_seconds.max(0.0) } else { 0.0 };
        let seconds = if before.is_some() { passed } else { all };
        Self { before, earlier, process: now, disk, seconds }
    }

    /// Returns the growth of `count` between the samples.
    pub(super) fn grown(&self, count: impl Fn(&DiskStats) -> f64) -> f64 {
        let now = self.process.disks.iter().find(|one| one.id == self.disk.id);
        let before = self.before.map_or(0.0, &count);
        now.map_or(0.0, |now| (count(now) - before).max(0.0))
    }

    /// Returns the growth of another disk's `count` between the samples, or since its attach.
    pub(super) fn grown_of(&self, other: &DiskStats, count: impl Fn(&DiskStats) -> f64) -> f64 {
        let before = self.earlier.disks.iter().find(|one| one.id == other.id);
        (count(other) - before.map_or(0.0, &count)).max(0.0)
    }

    /// Returns the requests that ended between the samples.
    pub(super) fn done(&self) -> f64 {
        self.grown(|disk| disk.requests.total() as f64)
    }

    /// Returns whether a request has not ended yet.
    pub(super) fn has_unfinished(&self) -> bool {
        self.disk.in_flight > 0 || self.disk.queued > 0
    }

    /// Returns the share of the time between the samples for which one of the disk's reactors was
    /// ready to run and had no CPU; the largest one.
    pub(super) fn cpu_wait_share(&self) -> f64 {
        if self.before.is_none() || self.seconds <= 0.0 {
            return 0.0;
        }
        let share = |at: &u32| {
            let of = |stats: &Stats| stats.reactors.get(*at as usize)?.cpu_wait_seconds;
            Some((of(self.process)? - of(self.earlier)?) / self.seconds)
        };
        self.disk.reactors.iter().filter_map(share).fold(0.0, f64::max)
    }

    /// Returns the requests that ended between the samples, and their seconds in `stage`.
    pub(super) fn spent(&self, stage: Stage) -> (f64, f64) {
        let sum = |disk: &DiskStats, of: fn(&crate::report::StageTimes) -> f64| {
            disk.stages.iter().filter(|one| one.stage == stage).map(of).sum::<f64>()
        };
        let count = self.grown(|disk| sum(disk, |one| one.times.count as f64));
        (count, self.grown(|disk| sum(disk, |one| one.sum_seconds)))
    }

    /// Returns the median of a stage since attach, over the kinds that move data, weighted by
    /// count.
    pub(super) fn usual(&self, stage: Stage) -> f64 {
        let moving = self.disk.stages.iter().filter(|one| one.stage == stage);
        let (sum, count) = moving.fold((0.0, 0.0), |(sum, count), one| {
            let weight = one.times.count as f64;
            (sum + one.times.p50_us * weight, count + weight)
        });
        if count > 0.0 { sum / count / 1e6 } else { 0.0 }
    }

    /// Returns the disks that share a reactor with this one, the busiest first.
    pub(super) fn neighbours(&self) -> Vec<Busy<'a>> {
        if self.seconds == 0.0 {
            return Vec::new();
        }
        let shares = |other: &&DiskStats| {
            other.id != self.disk.id
                && other.reactors.iter().any(|one| self.disk.reactors.contains(one))
        };
        let mut all: Vec<_> = self
            .process
            .disks
            .iter()
            .filter(shares)
            .map(|other| {
                let threads = other.reactors.len().max(1) as f64;
                let busy = self.grown_of(other, |disk| disk.busy_seconds);
                let share = busy / self.seconds / threads;
                Busy { disk: &other.id, share }
            })
            .collect();
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        all
    }

    /// Returns the disk that a reactor of this disk has served without ending its turn since the
    /// earlier sample.
    pub(super) fn stuck_with(&self) -> Option<&'a str> {
        self.before?;
        let pairs = self.earlier.reactors.iter().zip(&self.process.reactors).zip(0u32..);
        let mut ours = pairs.filter(|(_, at)| self.disk.reactors.contains(at));
        ours.find_map(|((before, now), _): ((&ReactorStats, &'a ReactorStats), _)| {
            let still = before.turns == now.turns && before.serving == now.serving;
            now.serving.as_deref().filter(|_| still)
        })
    }
}
