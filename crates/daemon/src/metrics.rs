//! Metrics for `/metrics`.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use xenapi::table::resolve::resolve;

/// Upper bound of the first latency bucket, in seconds. Each bucket is twice the one before it.
const SHORTEST_S: f64 = 0.000_25;
/// Number of buckets. The last finite bound is 16 s.
const BUCKETS: u16 = 17;
/// Label of unknown methods. Clients could otherwise create any number of series.
const UNKNOWN: &str = "unknown";

type Labels = Vec<(&'static str, String)>;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<Labels, Counter>,
    took: Histogram,
    /// Number of sessions.
    pub(crate) sessions: Gauge,
    /// Number of long calls under way.
    pub(crate) pending: Gauge,
    /// Number of disks that wait because their storage is full.
    pub(crate) full_disks: Gauge,
    records: Family<Labels, Gauge>,
    sr_total: Family<Labels, Gauge>,
    sr_used: Family<Labels, Gauge>,
    sr_warnings: Family<Labels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ringway");
        let calls = Family::default();
        registry.register("calls", "Answered calls", calls.clone());
        let took = Histogram::new(exponential_buckets(SHORTEST_S, 2.0, BUCKETS));
        let help = "Time from a call to its answer, except logins and waits for events";
        registry.register_with_unit("call_duration", help, Unit::Seconds, took.clone());
        let sessions = Gauge::default();
        registry.register("sessions", "Sessions", sessions.clone());
        let pending = Gauge::default();
        registry.register("pending_calls", "Calls that take a while", pending.clone());
        let full_disks = Gauge::default();
        let help = "Disks with writes that wait because the storage is full";
        registry.register("full_disks", help, full_disks.clone());
        let records = Family::default();
        registry.register("records", "Records, by class", records.clone());
        let [sr_total, sr_used, sr_warnings] = std::array::from_fn(|_| Family::default());
        let help = "Size of a storage repository";
        registry.register_with_unit("sr_size", help, Unit::Bytes, sr_total.clone());
        let help = "Used space of a storage repository, by all its users";
        registry.register_with_unit("sr_used", help, Unit::Bytes, sr_used.clone());
        let help = "Whether little space is left in a storage repository";
        registry.register("sr_space_warning", help, sr_warnings.clone());
        Self {
            registry,
            calls,
            took,
            sessions,
            pending,
            full_disks,
            records,
            sr_total,
            sr_used,
            sr_warnings,
        }
    }
}

impl Metrics {
    /// Counts an answered call.
    pub(crate) fn observe_call(&self, method: &str, outcome: &'static str, took: Option<Duration>) {
        let known = resolve(method).is_some();
        let method = if known { method } else { UNKNOWN };
        let labels = vec![("method", method.to_owned()), ("outcome", outcome.to_owned())];
        self.calls.get_or_create(&labels).inc();
        if let Some(took) = took {
            self.took.observe(took.as_secs_f64());
        }
    }

    /// Sets the number of records of a class.
    pub(crate) fn records(&self, class: &'static str, count: usize) {
        let labels = vec![("class", class.to_owned())];
        self.records.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the total and used bytes of SRs, by UUID, and whether a warning holds.
    pub(crate) fn srs(&self, srs: Vec<(String, [u64; 2], bool)>) {
        // An SR may have gone.
        [&self.sr_total, &self.sr_used, &self.sr_warnings].into_iter().for_each(Family::clear);
        for (uuid, [total, used], is_low) in srs {
            let labels = vec![("sr", uuid)];
            let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
            self.sr_total.get_or_create(&labels).set(gauge(total));
            self.sr_used.get_or_create(&labels).set(gauge(used));
            self.sr_warnings.get_or_create(&labels).set(i64::from(is_low));
        }
    }

    /// Returns all metrics in OpenMetrics format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            // Writing to a string does not fail.
            Err(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_told() {
        let metrics = Metrics::default();
        let took = Some(Duration::from_millis(3));
        metrics.observe_call("VM.start", "success", took);
        metrics.observe_call("VM.start", "success", took);
        metrics.observe_call("VM.start", "failure", None);
        metrics.sessions.set(2);
        metrics.records("VM", 3);
        let text = metrics.text();
        for line in [
            "ringway_calls_total{method=\"VM.start\",outcome=\"success\"} 2",
            "ringway_calls_total{method=\"VM.start\",outcome=\"failure\"} 1",
            "ringway_call_duration_seconds_count 2",
            "ringway_call_duration_seconds_bucket{le=\"0.004\"} 2",
            "ringway_sessions 2",
            "ringway_records{class=\"VM\"} 3",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} in {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn names_that_clients_make_up_are_one() {
        let metrics = Metrics::default();
        for number in 0..3 {
            metrics.observe_call(&format!("VM.made_up_{number}"), "failure", None);
        }
        let text = metrics.text();
        assert!(text.contains("{method=\"unknown\",outcome=\"failure\"} 3"), "{text}");
        assert!(!text.contains("made_up"), "{text}");
    }
}
