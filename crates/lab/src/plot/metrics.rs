//! Metrics in pictures: their labels, and which way is better.

/// Direction in which a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Higher is better.
    Higher,
    /// Lower is better.
    Lower,
}

use Better::{Higher, Lower};

/// Name, label with the unit, and direction of every metric that a picture may show.
const METRICS: [(&str, &str, Better); 52] = [
    ("1/percentile", "1 / latency, 1/s", Higher),
    ("all_over_one", "all pairs over one", Higher),
    ("all_ready_s", "all guests ready, s", Lower),
    ("backend_cpu_us_per_request", "CPU us for each request", Lower),
    ("backend_cpus", "CPUs of the backend", Lower),
    ("cap_part", "rate over the cap", Lower),
    ("call_p99_ms", "short calls, p99 ms", Lower),
    ("cold_ms", "first call after a change, ms", Lower),
    ("cpu_percent", "CPU, % of one core", Lower),
    ("cpu_us_per_request", "CPU us of guest and backend for each request", Lower),
    ("end_max_ms", "event of a VM's end, slowest ms", Lower),
    ("end_message_max_ms", "message of a VM's end, slowest ms", Lower),
    ("fetched_mib", "MiB from the source", Lower),
    ("floor_part", "rate over the floor", Higher),
    ("first_ms", "very first call, ms", Lower),
    ("first_ready_s", "first guest ready, s", Lower),
    ("frames_per_cpu_s", "frames a CPU second", Higher),
    ("frames_per_s", "frames a second", Higher),
    ("gbit_per_busy_s", "Gb a CPU second of everything", Higher),
    ("gbit_per_cpu_s", "Gb a CPU second", Higher),
    ("gbit_per_s", "Gb/s", Higher),
    ("half_ready_s", "half of the guests ready, s", Lower),
    ("imbalance_worst", "most loaded queue over the mean, worst draw", Lower),
    ("iops", "requests a second", Higher),
    ("last_over_second", "last boot over the second", Lower),
    ("max_over_min", "fastest disk over the slowest", Lower),
    ("max_ms", "slowest, ms", Lower),
    ("merged_mib_per_s", "MiB/s that are merged", Higher),
    ("mib_per_s", "MiB/s", Higher),
    ("mib_per_step", "MiB for each step", Lower),
    ("outside_max_ms", "outside of all slices, slowest ms", Lower),
    ("outside_p99_ms", "outside of all slices, p99 ms", Lower),
    ("p50_ms", "p50, ms", Lower),
    ("p50_us", "p50 latency, us", Lower),
    ("p99_ms", "p99, ms", Lower),
    ("p99_us", "p99 latency, us", Lower),
    ("part_of_limit", "total over the storage's limit", Higher),
    ("pss_mib", "memory of a guest with its QEMU, MiB", Lower),
    ("quarter_ratio", "time of the last quarter over the first", Lower),
    ("reactor_wakeups", "wake-ups of the reactors", Lower),
    ("server_ms", "server's time, ms", Lower),
    ("server_p99_ms", "server's time, p99 ms", Lower),
    ("slowest_s", "slowest machine, s", Lower),
    ("slowing", "last tenth over the first", Lower),
    ("start_ms", "start, ms", Lower),
    ("start_over_bound", "start over the bound", Lower),
    ("stop_ms", "shutdown, ms", Lower),
    ("stop_over_bound", "shutdown over the bound", Lower),
    ("voluntary_switches", "sleeps that ended", Lower),
    ("weights_error_percent", "furthest off its weight, %", Lower),
    ("wake_p99_ms", "from a change to its client, p99 ms", Lower),
    ("xe_p99_ms", "xe vm-list, p99 ms", Lower),
];

impl Better {
    /// Returns the direction of a metric. `None` if the metric is not in the list.
    #[must_use]
    pub fn of(metric: &str) -> Option<Self> {
        METRICS.iter().find(|(name, ..)| *name == metric).map(|(.., better)| *better)
    }
}

/// Returns a metric's label: the quantity, the unit, and which way is better.
pub(super) fn label(metric: &str) -> String {
    match METRICS.iter().find(|(name, ..)| *name == metric) {
        Some((_, label, Higher)) => format!("{label} (higher is better)"),
        Some((_, label, Lower)) => format!("{label} (lower is better)"),
        None => metric.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_which_way_is_better() {
        assert_eq!(label("iops"), "requests a second (higher is better)");
        assert_eq!(label("p50_us"), "p50 latency, us (lower is better)");
        assert_eq!((label("other"), Better::of("other")), ("other".to_owned(), None));
    }
}
