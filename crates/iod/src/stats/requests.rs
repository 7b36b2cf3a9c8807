//! Statistics of request times and of single requests.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use blk::{BlkDevice, Class, Op, SlowRequest, Stage, Summary, clock_ns};
use model::report::{
    self, BusyNeighbour, Latency, OldestRequest, QueueStats, RequestKind, StageTimes,
};

use super::{microseconds, polling};

/// Slow requests reported for one disk. A recorder stores dozens for each queue.
const MAX_REPORTED_SLOW_REQUESTS: usize = 32;

/// Names of disks by label, and indexes of reactors by number.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Ids of disks by the label of their device.
    pub(crate) disks: BTreeMap<u32, String>,
    /// Index in the list of reactors by reactor number.
    pub(crate) reactors: BTreeMap<u32, u32>,
}

impl Names {
    fn reactor(&self, number: u32) -> u32 {
        self.reactors.get(&number).copied().unwrap_or(number)
    }

    fn neighbour(&self, label: u32, turn_ns: u64) -> BusyNeighbour {
        BusyNeighbour { disk: self.disks.get(&label).cloned(), turn_us: microseconds(turn_ns) }
    }
}

/// Converts a summary to its report type.
pub(crate) fn latency(summary: &Summary) -> Latency {
    Latency {
        count: summary.count,
        p50_us: microseconds(summary.p50_ns),
        p90_us: microseconds(summary.p90_ns),
        p99_us: microseconds(summary.p99_ns),
        p999_us: microseconds(summary.p999_ns),
        max_us: microseconds(summary.max_ns),
    }
}

/// Converts a stage to its report type.
pub(crate) fn stage(stage: Stage) -> report::Stage {
    match stage {
        Stage::Queue => report::Stage::Queue,
        Stage::Cap => report::Stage::Cap,
        Stage::Device => report::Stage::Device,
        Stage::Completion => report::Stage::Completion,
        Stage::Total => report::Stage::Total,
    }
}

/// Converts an operation to its report type.
pub(crate) fn op(op: Op) -> report::Op {
    match op {
        Op::Read => report::Op::Read,
        Op::Write => report::Op::Write,
        Op::Flush => report::Op::Flush,
        Op::Other => report::Op::Other,
    }
}

fn kind(class: Class) -> RequestKind {
    match class {
        Class::Read => RequestKind::Read,
        Class::Write => RequestKind::Write,
        Class::Flush => RequestKind::Flush,
        Class::Discard => RequestKind::Discard,
        Class::WriteZeroes => RequestKind::WriteZeroes,
        Class::GetId => RequestKind::GetId,
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the times of every stage and operation that has some.
pub(super) fn stages(device: &BlkDevice) -> Vec<StageTimes> {
    let pairs = Stage::ALL.into_iter().flat_map(|stage| Op::ALL.map(|op| (stage, op)));
    let reported = pairs.filter_map(|(one, kind)| {
        let all = device.durations(one, kind)?;
        let (times, sum_seconds) = (latency(&all.summary()), seconds(all.sum_ns()));
        Some(StageTimes { stage: stage(one), op: op(kind), times, sum_seconds })
    });
    reported.collect()
}

/// Returns the oldest request in flight.
pub(super) fn oldest(device: &BlkDevice) -> Option<OldestRequest> {
    let oldest = device.oldest()?;
    let now = clock_ns();
    let request = oldest.request;
    Some(OldestRequest {
        kind: request.map(|(class, _, _)| kind(class)),
        offset: request.map_or(0, |(_, offset, _)| offset),
        bytes: request.map_or(0, |(_, _, bytes)| bytes),
        stage: stage(oldest.stage),
        age_seconds: seconds(now.saturating_sub(oldest.known_ns)),
        in_stage_seconds: seconds(now.saturating_sub(oldest.entered_ns)),
    })
}

/// Returns slow requests, newest first.
pub(super) fn slow(device: &BlkDevice, names: &Names) -> Vec<report::SlowRequest> {
    let now = clock_ns();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    let mut records = device.slow();
    records.sort_by_key(|record| std::cmp::Reverse(record.known_ns + record.total_ns()));
    // The slowest request of a minute may also be in the list of slow requests.
    records.dedup();
    let reported = records
        .iter()
        .take(MAX_REPORTED_SLOW_REQUESTS)
        .map(|record| one_slow(record, names, now, wall));
    reported.collect()
}

fn one_slow(record: &SlowRequest, names: &Names, now: u64, wall: f64) -> report::SlowRequest {
    let ago = seconds(now.saturating_sub(record.known_ns + record.total_ns()));
    let [queue, cap, device, completion] = record.stages_ns;
    report::SlowRequest {
        kind: kind(record.class),
        failed: record.failed,
        offset: record.offset,
        bytes: record.len,
        ended_unix_seconds: wall - ago,
        ended_seconds_ago: ago,
        total_us: microseconds(record.total_ns()),
        queue_us: microseconds(queue),
        cap_us: microseconds(cap),
        device_us: microseconds(device),
        completion_us: microseconds(completion),
        reactor: names.reactor(record.reactor),
        others: record.others,
        neighbour: record.neighbour.map(|(label, time)| names.neighbour(label, time)),
    }
}

/// Returns the statistics of each queue that was ever served.
pub(super) fn queues(device: &BlkDevice, names: &Names) -> Vec<QueueStats> {
    let now = clock_ns();
    let states = device.queue_states().into_iter().enumerate();
    let used = states.filter(|(_, state)| state.busy_ns > 0 || state.in_flight > 0);
    let reported = used.map(|(index, state)| QueueStats {
        index: index as u16,
        reactor: names.reactor(state.reactor),
        in_flight: state.in_flight,
        queued: state.in_ring,
        throttled: state.held_by_cap,
        busy_seconds: seconds(state.busy_ns),
        longest_turn_us: microseconds(state.longest_turn_ns),
        neighbour_seconds: seconds(state.neighbour_ns),
        neighbour: state.neighbour.map(|(label, time, _)| names.neighbour(label, time)),
        neighbour_seconds_ago: state.neighbour.map(|(_, _, at)| seconds(now.saturating_sub(at))),
        polling: Some(polling::of_queue(&state)),
    });
    reported.collect()
}

/// Sums over the present queues of a disk.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) in_flight: u64,
    pub(super) in_rings: u64,
    pub(super) held_by_cap: u64,
    pub(super) reactors: Vec<u32>,
    pub(super) busy_seconds: f64,
    pub(super) neighbour_seconds: f64,
}

pub(super) fn sums(device: &BlkDevice, names: &Names) -> Sums {
    let mut sums = Sums::default();
    for state in device.queue_states() {
        sums.in_flight += u64::from(state.in_flight);
        sums.in_rings += u64::from(state.in_ring);
        sums.held_by_cap += u64::from(state.held_by_cap);
        if state.served {
            sums.reactors.push(names.reactor(state.reactor));
        }
        sums.busy_seconds += seconds(state.busy_ns);
        sums.neighbour_seconds += seconds(state.neighbour_ns);
    }
    sums.reactors.sort_unstable();
    sums.reactors.dedup();
    sums
}
