//! Diagnosis from the requests that ended between two samples.

use super::units::{bytes, duration};
use super::{Cause, DiskFacts, DiskVerdict};
use crate::caps::{MAX_BYTES_PER_SECOND, MAX_IOPS};
use crate::report::{DiskStats, Stage};

/// Share of the requests' time from which a stage counts as the cause.
pub(super) const SHARE_NAMED: f64 = 0.3;
/// Waits below this many seconds are never a cause, whatever their share.
pub(super) const WAIT_MIN_SECONDS: f64 = 100e-6;
/// Share of a thread's time from which a disk delays others, for turns of any length.
const BUSY_SHARE: f64 = 0.5;
/// Share of a thread's time from which a disk with long turns delays others.
const LONG_TURNS_SHARE: f64 = 0.15;
/// Share of a thread's time at which the thread is saturated.
const FULL_SHARE: f64 = 0.9;
/// Storage is slow if it takes this many times its median, and at least the seconds below.
const SLOW_MEDIANS: f64 = 4.0;
const SLOW_MIN_SECONDS: f64 = 1e-3;
/// Storage that takes this many seconds is slow even if its median is as high.
const SLOW_ALWAYS_SECONDS: f64 = 20e-3;
/// Mean number of requests in flight from which the guest's queue depth explains their time.
const DEEP: f64 = 16.0;

/// Share of the requests from which read-modify-writes are named.
const SMALL_WRITES_SHARE: f64 = 0.1;

/// Means over the time between the samples.
struct Flow {
    requests: f64,
    mean: f64,
    /// Shares of the requests' time.
    queue: f64,
    cap: f64,
    device: f64,
    /// Mean time with the storage, in seconds.
    device_mean: f64,
}

impl Flow {
    fn of(facts: &DiskFacts<'_>) -> Self {
        let (requests, total) = facts.spent(Stage::Total);
        let share = |seconds: f64| if total > 0.0 { seconds / total } else { 0.0 };
        let (with_device, device) = facts.spent(Stage::Device);
        Self {
            requests,
            mean: if requests > 0.0 { total / requests } else { 0.0 },
            queue: share(facts.spent(Stage::Queue).1),
            cap: share(facts.spent(Stage::Cap).1),
            device: share(device),
            device_mean: if with_device > 0.0 { device / with_device } else { 0.0 },
        }
    }
}

/// Returns the verdict for a disk whose times are not recorded.
pub(super) fn not_recorded(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let disk = facts.disk;
    (!disk.recorded).then(|| {
        let sentence = format!(
            "{} is served ({:.0} requests a second), and where their time goes is not recorded.",
            disk.id,
            rate(facts, facts.done())
        );
        let step = "attach it with record=true, which is the default";
        DiskVerdict::new(Cause::NotRecorded, sentence).next(step)
    })
}

/// Returns a verdict if the requests spend their time under the cap.
pub(super) fn capped_share(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let flow = Flow::of(facts);
    if flow.cap >= SHARE_NAMED && flow.mean >= WAIT_MIN_SECONDS {
        return Some(capped(facts, None));
    }
    // The cap has held a request back for so long that no request has ended.
    let oldest = facts.disk.oldest.as_ref().filter(|one| one.stage == Stage::Cap);
    let held = oldest.map_or(0.0, |one| one.in_stage_seconds);
    let is_held = held >= WAIT_MIN_SECONDS && held >= facts.seconds * SHARE_NAMED;
    (facts.done() == 0.0 && is_held).then(|| capped(facts, Some(held)))
}

/// Returns a verdict if the host does not run the disk's reactor although it has work.
pub(super) fn no_cpu(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (share, flow) = (facts.cpu_wait_share(), Flow::of(facts));
    let waits = flow.mean >= WAIT_MIN_SECONDS || (flow.requests == 0.0 && facts.has_unfinished());
    (share >= SHARE_NAMED && waits).then(|| {
        let sentence = format!(
            "{} waits for a CPU: the host did not run its reactor for {:.0}% of the time, although \
             it had work.",
            facts.disk.id,
            share * 100.0
        );
        let step = "give this process a larger share of the CPUs: fewer busy machines, a higher \
                    weight or quota of its control group, a CPU of its own";
        DiskVerdict::new(Cause::NoCpu, sentence).at(Stage::Queue).next(step)
    })
}

/// Returns a verdict if the guest sends no requests.
pub(super) fn idle(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    (facts.done() == 0.0 && !facts.has_unfinished()).then(|| {
        let sentence = format!("{} is idle: its guest asks for nothing.", facts.disk.id);
        DiskVerdict::new(Cause::Idle, sentence)
    })
}

/// Returns a number of events as a rate a second.
pub(super) fn rate(facts: &DiskFacts<'_>, count: f64) -> f64 {
    if facts.seconds > 0.0 { count / facts.seconds } else { 0.0 }
}

/// Returns the verdict that the cap holds the disk back.
pub(super) fn capped(facts: &DiskFacts<'_>, held: Option<f64>) -> DiskVerdict {
    let disk = facts.disk;
    let flow = Flow::of(facts);
    let how = match held {
        Some(seconds) => format!("a request has been held back for {}", duration(seconds)),
        None => format!(
            "{:.0}% of the time of its requests, {} each, is spent held back",
            flow.cap * 100.0,
            duration(flow.mean)
        ),
    };
    let sentence = format!("{} waits for its cap{}: {how}.", disk.id, limits(disk));
    DiskVerdict::new(Cause::Cap, sentence).at(Stage::Cap).next(raise(disk))
}

/// Returns the command that raises the cap. It lists all caps, because `disk.caps` removes absent
/// ones.
fn raise(disk: &DiskStats) -> String {
    let Some(caps) = &disk.caps else { return "its cap has just been lifted".into() };
    let twice = |cap: Option<u64>, most| cap.map(|cap| cap.saturating_mul(2).min(most));
    let (iops, bytes) =
        (twice(caps.iops, MAX_IOPS), twice(caps.bytes_per_second, MAX_BYTES_PER_SECOND));
    // A burst may not be lower than its cap.
    let burst =
        |burst: Option<u64>, cap: Option<u64>| burst.map(|burst| burst.max(cap.unwrap_or(0)));
    let (iops_burst, bytes_burst) = (burst(caps.iops_burst, iops), burst(caps.bytes_burst, bytes));
    let any_burst = iops_burst.or(bytes_burst);
    let seconds = any_burst.map(|_| u64::from(caps.burst_seconds));
    let all = [
        ("iops", iops),
        ("iops_burst", iops_burst),
        ("bytes_per_second", bytes),
        ("bytes_burst", bytes_burst),
        ("burst_seconds", seconds),
    ];
    let given =
        all.into_iter().filter_map(|(name, value)| Some(format!(" caps.{name}={}", value?)));
    format!(
        "if that is not meant, raise the cap, for example to twice as much: ringway io disk.caps \
         id={}{}",
        disk.id,
        given.collect::<String>()
    )
}

/// Returns the text of the cap's long-term rates.
fn limits(disk: &DiskStats) -> String {
    let Some(caps) = &disk.caps else { return String::new() };
    let iops = caps.iops.map(|count| format!("{count} requests"));
    let rate = caps.bytes_per_second.map(bytes);
    let all: Vec<_> = iops.into_iter().chain(rate).collect();
    if all.is_empty() { String::new() } else { format!(" of {} a second", all.join(" and ")) }
}

/// Returns a verdict if another disk occupies the thread.
pub(super) fn neighbour(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, flow) = (facts.disk, Flow::of(facts));
    let waited = rate(facts, facts.grown(|disk| disk.neighbour_seconds));
    let long_turns = waited >= SHARE_NAMED;
    let short_turns = flow.queue >= SHARE_NAMED && flow.mean * flow.queue >= WAIT_MIN_SECONDS;
    if !long_turns && !short_turns {
        return None;
    }
    let busy = facts.neighbours().into_iter().next();
    let least = if long_turns { LONG_TURNS_SHARE } else { BUSY_SHARE };
    // The turns of a disk look long, too, if the host does not run the thread.
    let least = f64::max(least, facts.cpu_wait_share());
    let busy = busy.filter(|one| one.share >= least)?;
    let sentence = format!(
        "{} waits for its reactor, which disk {} keeps {:.0}% of the time: its requests spend \
         {:.0}% of theirs, {} each, in the ring.",
        disk.id,
        busy.disk,
        busy.share * 100.0,
        flow.queue * 100.0,
        duration(flow.mean * flow.queue),
    );
    let mut verdict = DiskVerdict::new(Cause::Neighbour, sentence).at(Stage::Queue);
    verdict.neighbour = Some(busy.disk.into());
    Some(verdict.next(format!(
        "give {} a cap, or serve the two from processes of their own; ringway why {} says more",
        busy.disk, busy.disk
    )))
}

/// Returns a verdict if the disk itself saturates the thread.
pub(super) fn processor(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, flow) = (facts.disk, Flow::of(facts));
    let threads = disk.reactors.len().max(1) as f64;
    let share = rate(facts, facts.grown(|disk| disk.busy_seconds)) / threads;
    if share < FULL_SHARE || flow.queue < SHARE_NAMED {
        return None;
    }
    let sentence = format!(
        "{} keeps its reactor busy {:.0}% of the time, so its requests wait for each other: {} \
         each in the ring.",
        disk.id,
        share * 100.0,
        duration(flow.mean * flow.queue),
    );
    let step = "give the disk more queues and the process more reactors, or the host more CPUs";
    Some(DiskVerdict::new(Cause::Processor, sentence).at(Stage::Queue).next(step))
}

/// Returns a verdict if the requests spend their time with the storage.
pub(super) fn storage_slow(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, flow) = (facts.disk, Flow::of(facts));
    let usual = facts.usual(Stage::Device);
    let much = flow.device >= SHARE_NAMED && flow.device_mean >= SLOW_MIN_SECONDS;
    let times = flow.device_mean / usual.max(1e-9);
    let is_slow = much && (times >= SLOW_MEDIANS || flow.device_mean >= SLOW_ALWAYS_SECONDS);
    is_slow.then(|| {
        let compared = if times >= SLOW_MEDIANS {
            format!("{times:.0} times the median of {}", duration(usual))
        } else {
            format!("which is usual for it: the median is {}", duration(usual))
        };
        let sentence = format!(
            "{} waits for its storage: requests take {} there, {compared}.",
            disk.id,
            duration(flow.device_mean),
        );
        let step = "see who else uses that storage, and what its own statistics say";
        DiskVerdict::new(Cause::StorageSlow, sentence).at(Stage::Device).next(step)
    })
}

/// Returns a verdict if many requests read and rewrite whole blocks of the storage.
pub(super) fn small_writes(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, flow) = (facts.disk, Flow::of(facts));
    let (done, small) = (facts.done(), facts.grown(|disk| disk.small_writes as f64));
    (done > 0.0 && small >= done * SMALL_WRITES_SHARE).then(|| {
        let sentence = format!(
            "{} pays for small writes: the guest writes {}-byte blocks on storage with larger \
             ones, so {:.0} times a second blocks are read and rewritten, for {:.0} requests of {} \
             each.",
            disk.id,
            disk.geometry.block_size,
            rate(facts, small),
            rate(facts, done),
            duration(flow.mean),
        );
        let step = "align the guest's partitions and file systems to 4096 bytes, attach the disk \
                    with cache=writeback, or move it to storage with smaller blocks; a guest that \
                    is set up anew can have block_size=4096";
        DiskVerdict::new(Cause::SmallWrites, sentence).at(Stage::Device).next(step)
    })
}

/// Returns a verdict if the guest keeps more requests in flight than the storage serves at a time.
pub(super) fn deep_queue(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, flow) = (facts.disk, Flow::of(facts));
    // Little's law: mean number of requests in flight.
    let depth = rate(facts, flow.requests) * flow.mean;
    (depth >= DEEP && flow.device >= 1.0 - SHARE_NAMED).then(|| {
        let sentence = format!(
            "{} is at the limit of its storage: the guest keeps {depth:.0} requests under way \
             and the storage answers {:.0} a second, so each takes {}.",
            disk.id,
            rate(facts, flow.requests),
            duration(flow.mean),
        );
        let step = "faster storage helps, or a guest that asks for less at a time";
        DiskVerdict::new(Cause::DeepQueue, sentence).at(Stage::Device).next(step)
    })
}

/// Returns the verdict for a disk that nothing holds up.
pub(super) fn healthy(facts: &DiskFacts<'_>) -> DiskVerdict {
    let flow = Flow::of(facts);
    let sentence = format!(
        "{} is served without a hold-up: {:.0} requests a second, {} each, of which {} with the \
         storage.",
        facts.disk.id,
        rate(facts, flow.requests),
        duration(flow.mean),
        duration(flow.device_mean),
    );
    DiskVerdict::new(Cause::Healthy, sentence)
}
