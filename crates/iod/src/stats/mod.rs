//! Statistics of a process and its disks.

mod broken_rings;
mod features;
mod golden;
mod keeper;
mod layers;
mod overlay;
mod polling;
mod requests;
mod storage_errors;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use blk::Counts;
use model::report::{DiskStats, DriverStarts, OpCounts, ReactorStats, Stats};

use crate::disk_registry::state;
use crate::open_disk::reported;
use crate::pool::Pool;
use crate::served_disk::{ServedDisk, StuckStorage};
pub(crate) use broken_rings::broken_ring;
pub(crate) use keeper::{keeper, refused};
pub(crate) use polling::{refusals, waits};
use requests::Names;
pub(crate) use requests::{latency, op, stage};

/// Level of detail of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatsDetail {
    /// Counts and times.
    Counts,
    /// Each queue and each slow request, too.
    Everything,
}

/// Returns the statistics of the process: its reactors, and `wanted` disks of `served_disks`.
pub(crate) fn process(
    started: Instant,
    pool: &Pool,
    served_disks: &[Arc<ServedDisk>],
    wanted: impl Fn(&str) -> bool,
    detail: StatsDetail,
) -> Stats {
    let names = names(pool, served_disks);
    let reactors = pool.reactors().into_iter().map(|(handle, queues)| {
        let counters = handle.counters();
        ReactorStats {
            queues: queues as u64,
            sleeps: counters.sleeps(),
            syscalls: counters.syscalls(),
            wakeups: counters.wakeups(),
            turns: counters.turns(),
            poll_seconds: counters.spun_ns() as f64 / 1e9,
            cpu_wait_seconds: handle.cpu_wait_ns().map(|ns| ns as f64 / 1e9),
            serving: names.disks.get(&counters.serving()).cloned(),
        }
    });
    let wanted_disks = served_disks.iter().filter(|served_disk| wanted(&served_disk.spec().id));
    Stats {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_seconds: started.elapsed().as_secs_f64(),
        ports: Vec::new(),
        reactors: reactors.collect(),
        reactors_reason: Some(pool.size().to_string()),
        queues_moved: pool.moves(),
        disks: wanted_disks.map(|served_disk| disk(served_disk, &names, detail)).collect(),
        nics: Vec::new(),
        networks: Vec::new(),
        poll_defaults: None,
        keeper: None,
        start: None,
    }
}

fn names(pool: &Pool, served_disks: &[Arc<ServedDisk>]) -> Names {
    let disks = served_disks.iter().map(|one| (one.device().label(), one.spec().id.clone()));
    let reactors = pool.reactors().into_iter().zip(0..).map(|((one, _), at)| (one.number(), at));
    Names { disks: disks.collect(), reactors: reactors.collect() }
}

fn driver_starts(served_disk: &ServedDisk) -> Option<DriverStarts> {
    let starts = served_disk.driver_starts()?;
    Some(DriverStarts {
        count: starts.count,
        first_seconds_ago: starts.first.elapsed().as_secs_f64(),
        last_seconds_ago: starts.last.elapsed().as_secs_f64(),
    })
}

fn disk(served_disk: &ServedDisk, names: &Names, detail: StatsDetail) -> DiskStats {
    let (spec, device) = (served_disk.spec(), served_disk.device());
    let (stats, sums) = (device.stats(), requests::sums(device, names));
    let everything = detail == StatsDetail::Everything;
    let requests = counts(stats.requests);
    let ended = requests.total().saturating_add(stats.errors) as f64;
    let per = |events: u64| (events > 0).then(|| ended / events as f64);
    DiskStats {
        id: spec.id.clone(),
        state: state(served_disk),
        socket: spec.socket.as_ref().map(|socket| socket.display().to_string()),
        backend: served_disk.tree().backend.clone(),
        geometry: reported(served_disk.geometry()),
        cache: spec.cache,
        poll: served_disk.polling().mode,
        queues: spec.queues,
        queues_started: served_disk.queues_started(),
        driver_starts: driver_starts(served_disk),
        connected: served_disk.is_connected(),
        features: served_disk.features(),
        alert: alert(served_disk),
        caps: served_disk.caps(),
        share: served_disk.share_report(),
        stuck: served_disk.stuck().map(|stuck| model::report::Stuck {
            since_seconds: stuck.since.elapsed().as_secs_f64(),
            requests: stuck.requests,
            verb: stuck.verb.into(),
        }),
        refused: None,
        unknown_format: false,
        fence: served_disk
            .fence_since()
            .map(|since| model::report::Fence { since_seconds: since.elapsed().as_secs_f64() }),
        counting_since_unix_seconds: Some(unix_seconds(device.made())),
        requests,
        bytes: counts(stats.bytes),
        errors: stats.errors,
        kicks: stats.kicks,
        calls: stats.calls,
        publishes: stats.publishes,
        requests_per_call: per(stats.calls),
        requests_per_publish: per(stats.publishes),
        resubmitted: stats.resubmitted,
        failed_suspects: stats.failed_suspects,
        small_writes: served_disk.small_writes(),
        layers: served_disk.layer_counts().map(layers::of),
        golden: served_disk.cache_state().map(golden::of),
        overlay: served_disk.overlay_counts().map(overlay::of),
        storage_errors: stats.storage_errors.map(storage_errors::of),
        broken_rings: broken_rings::of(device),
        broken_rings_total: stats.broken_rings,
        waiting: served_disk.waiting(),
        latency: requests::latency(&stats.latency),
        polling: Some(polling::of(served_disk)),
        feature_names: features::names(served_disk.features()),
        serial: spec.serial.clone(),
        recorded: spec.record,
        locked: served_disk.is_active(),
        exports: served_disk.export_stats(),
        in_flight: sums.in_flight,
        queued: sums.in_rings,
        throttled_queues: sums.held_by_cap,
        reactors: sums.reactors,
        busy_seconds: sums.busy_seconds,
        neighbour_seconds: sums.neighbour_seconds,
        oldest: requests::oldest(device),
        stages: requests::stages(device),
        each_queue: if everything { requests::queues(device, names) } else { Vec::new() },
        slow: if everything { requests::slow(device, names) } else { Vec::new() },
    }
}

/// Explains why requests wait, and what ends the wait.
fn alert(served_disk: &ServedDisk) -> Option<String> {
    let (waiting, place) = (served_disk.waiting(), served_disk.backend_text());
    if let Some(StuckStorage { since, requests, verb }) = served_disk.stuck() {
        let seconds = since.elapsed().as_secs();
        return Some(format!(
            "the storage of {place} hangs: {verb} abandoned {requests} requests {seconds} s ago; \
             mend the storage, and the disk continues by itself"
        ));
    }
    if let Some(problem) = served_disk.cache_state().and_then(|state| state.problem) {
        return Some(format!("blocks of {place} wait for its source: {problem}"));
    }
    if let Some(found) = served_disk.cache_state().and_then(|state| state.other_digest) {
        return Some(format!(
            "the bytes of {place} have the digest sha256:{found}, which is not that of its identity; \
             shut down its machines, and give the right image or the right digest"
        ));
    }
    if waiting == 0 {
        return None;
    }
    if let Some(counts) = served_disk.overlay_counts().filter(|counts| counts.is_full) {
        let full = match counts.has_overflow {
            true => format!("memory and overflow file of {place} are full"),
            false => format!("the memory of {place} is full"),
        };
        let step = overlay::of(counts).room_step(&served_disk.spec().id);
        let step = step.map_or_else(String::new, |step| format!("{step}, or "));
        return Some(format!(
            "{waiting} requests wait because {full}; {step}discard blocks in the guest, and they \
             continue by themselves"
        ));
    }
    Some(format!(
        "{waiting} requests wait because the storage of {place} is full; make room there and \
         they continue by themselves"
    ))
}

fn counts(counts: Counts) -> OpCounts {
    let Counts { read, write, flush, discard, write_zeroes, get_id } = counts;
    OpCounts { read, write, flush, discard, write_zeroes, get_id }
}

/// Converts a time to seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
