//! Counters of clients, and the figures computed from them.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use testkit::driver::Queue;

use super::{Load, Wait};
use crate::cpu;
use crate::experiment::Sample;

/// Largest recorded latency in nanoseconds. Longer ones count as this value.
const LATENCY_NS_MAX: u64 = 10_000_000_000;

/// Counters of a client inside the window.
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) turns: u64,
    pub(super) kicks: u64,
    pub(super) calls: u64,
    /// Number of times that the client slept.
    pub(super) sleeps: u64,
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    pub(super) latency_ns: Histogram<u64>,
    /// Requests that were sent late, in an open loop. `None` in a closed loop.
    pub(super) late: Option<u64>,
}

/// Returns a histogram of latencies in nanoseconds.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).context("cannot create a histogram")
}

/// Records the time since `since`.
#[inline]
pub(crate) fn record(latency_ns: &mut Histogram<u64>, since: Instant) {
    let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    latency_ns.saturating_record(ns.max(1));
}

/// Counters at a point in time.
pub(super) struct Mark {
    at: Instant,
    cpu_s: f64,
    kicks: u64,
    calls: u64,
    sleeps: u64,
}

impl Mark {
    pub(super) fn now(queue: &Queue) -> Result<Self> {
        let (kicks, calls) = (queue.kicks, queue.calls);
        let (sleeps, cpu_s) = (cpu::thread_switches()?, cpu::thread_time_s());
        Ok(Self { at: Instant::now(), cpu_s, kicks, calls, sleeps })
    }

    /// Returns the counters since the mark. The caller fills in requests, turns and errors.
    pub(super) fn tally(&self, queue: &Queue, latency_ns: &Histogram<u64>) -> Result<Tally> {
        let (at, end) = (Instant::now(), Self::now(queue)?);
        Ok(Tally {
            requests: 0,
            errors: 0,
            turns: 0,
            kicks: end.kicks - self.kicks,
            calls: end.calls - self.calls,
            sleeps: end.sleeps - self.sleeps,
            wall_s: (at - self.at).as_secs_f64(),
            cpu_s: end.cpu_s - self.cpu_s,
            latency_ns: latency_ns.clone(),
            late: None,
        })
    }
}

/// Returns the combined figures of several clients.
pub(super) fn to_sample(tallies: &[Tally], load: Load, backend_cpus: f64) -> Result<Sample> {
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>() as f64;
    let (requests, errors) = (sum(|t| t.requests), sum(|t| t.errors));
    if errors > 0.0 {
        bail!("{errors} of {requests} requests failed");
    }
    if tallies.iter().any(|t| t.requests == 0) {
        bail!("the backend stopped answering");
    }
    let each: Vec<f64> = tallies.iter().map(|t| t.requests as f64 / t.wall_s).collect();
    let iops: f64 = each.iter().sum();
    let client_cpus: f64 = tallies.iter().map(|t| t.cpu_s / t.wall_s).sum();
    let mut latency_ns = histogram()?;
    for tally in tallies {
        latency_ns.add(&tally.latency_ns).context("latencies cannot be summed")?;
    }
    let micros = |q: f64| latency_ns.value_at_quantile(q) as f64 / 1e3;
    let metrics = [
        ("requests", requests),
        ("errors", errors),
        ("iops", iops),
        ("mib_per_s", iops * load.bytes as f64 / f64::from(1 << 20)),
        ("p50_us", micros(0.50)),
        ("p99_us", micros(0.99)),
        ("latency_samples", latency_ns.len() as f64),
        ("backend_cpus", backend_cpus),
        ("backend_cpu_us_per_request", backend_cpus * 1e6 / iops),
        ("client_cpus", client_cpus),
        ("kicks_per_request", sum(|t| t.kicks) / requests),
        ("calls_per_request", sum(|t| t.calls) / requests),
        ("turns_per_request", sum(|t| t.turns) / requests),
    ];
    let mut sample: Sample = metrics.map(|(name, value)| (name.to_owned(), value)).into();
    if load.wait == Wait::Sleep {
        sample.insert("sleeps_per_request".into(), sum(|t| t.sleeps) / requests);
    }
    if tallies.iter().any(|t| t.late.is_some()) {
        let late = sum(|t| t.late.unwrap_or(0));
        sample.insert("late_arrivals".into(), late / requests);
    }
    if each.len() > 1 {
        let slowest = each.iter().copied().fold(f64::INFINITY, f64::min);
        sample.insert("slowest_share".into(), slowest * each.len() as f64 / iops);
    }
    Ok(sample)
}
