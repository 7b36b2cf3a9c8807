//! Counts, as they are reported.

use std::sync::Arc;
use std::time::Instant;

use blk::Counts;
use model::report::{DiskStats, Latency, OpCounts, ReactorStats, Stats};
use model::spec::Backend;

use crate::export::Export;
use crate::open::reported;
use crate::pool::Pool;
use crate::table::state;

/// The whole process: its reactors, and the given disks.
pub(crate) fn process(started: Instant, pool: &Pool, exports: &[Arc<Export>]) -> Stats {
    let reactors = pool.reactors().into_iter().map(|(handle, queues)| {
        let counters = handle.counters();
        ReactorStats {
            queues: queues as u64,
            sleeps: counters.sleeps(),
            syscalls: counters.syscalls(),
            wakeups: counters.wakeups(),
        }
    });
    Stats {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_seconds: started.elapsed().as_secs_f64(),
        reactors: reactors.collect(),
        disks: exports.iter().map(|export| disk(export)).collect(),
    }
}

fn disk(export: &Export) -> DiskStats {
    let (spec, stats) = (export.spec(), export.stats());
    DiskStats {
        id: spec.id.clone(),
        state: state(export),
        socket: spec.socket.display().to_string(),
        backend: spec.backend.clone(),
        geometry: reported(export.geometry()),
        cache: spec.cache,
        poll: spec.poll,
        queues: spec.queues,
        queues_started: export.queues_started(),
        connected: export.is_connected(),
        features: export.features(),
        alert: alert(export),
        requests: counts(stats.requests),
        bytes: counts(stats.bytes),
        errors: stats.errors,
        kicks: stats.kicks,
        calls: stats.calls,
        resubmitted: stats.resubmitted,
        latency: Latency {
            count: stats.latency.count,
            p50_us: microseconds(stats.latency.p50_ns),
            p99_us: microseconds(stats.latency.p99_ns),
            max_us: microseconds(stats.latency.max_ns),
        },
    }
}

/// Why requests wait, and what ends it.
fn alert(export: &Export) -> Option<String> {
    let (waiting, backend) = (export.waiting(), &export.spec().backend);
    if waiting == 0 {
        return None;
    }
    let place = match backend {
        Backend::File(path) => path.display().to_string(),
        Backend::Null(_) | Backend::Memory(_) => "the disk".into(),
    };
    Some(format!(
        "{waiting} requests wait because the storage of {place} is full; \
         make room there and they go on by themselves"
    ))
}

fn counts(counts: Counts) -> OpCounts {
    let Counts { read, write, flush, discard, write_zeroes, get_id } = counts;
    OpCounts { read, write, flush, discard, write_zeroes, get_id }
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
