//! Guest as the client: single-threaded sequential small reads in User-Mode Linux.
//!
//! `dd` reads 4 KiB at a time past the guest's page cache and prints the duration. The guest has
//! the client's whole CPU.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::guest::{Guest, Kind, Machine};

use super::client::Window;
use super::image::DISK_BYTES;
use super::medium::Medium;
use super::systems::{Place, System};
use crate::cpu;
use crate::experiment::Sample;
use crate::host::HostTime;

/// Size of one read in bytes.
const BYTES: u64 = 4096;
/// Reads before the measurement.
const WARM: u64 = 500;
/// Reads per millisecond of the window, about the rate of such a guest.
const PER_MS: u64 = 12;
/// Deadline far beyond the time of any boot.
const DEADLINE: Duration = Duration::from_secs(120);

/// Boots a guest on a fresh backend, runs its reads, and ends both.
pub(super) fn measure(
    system: System,
    medium: Medium,
    place: &Place,
    window: Window,
) -> Result<Sample> {
    let backend = system.start(medium, place, &[])?;
    let millis = u64::try_from(window.measure.as_millis())?;
    let reads = (PER_MS * millis).clamp(100, DISK_BYTES / BYTES);
    let script = format!(
        "export LC_ALL=C
         read_some() {{ dd if=/dev/vda of=/dev/null bs={BYTES} count=$1 iflag=direct 2>&1; }}
         read_some {WARM} >/dev/null && echo lab-begin && read_some {reads} && echo lab-end"
    );
    let cpu = Some(place.placement.client);
    let machine = Machine { cpu, ..Machine::with_disk(backend.socket()) };
    let mut guest = Guest::start(Kind::Uml, &machine, &script)?;
    guest.wait_for("lab-begin", DEADLINE)?;
    let pid = backend.process.id();
    let (before, host) = (cpu::process_time_s(pid)?, HostTime::now()?);
    let start = std::time::Instant::now();
    guest.wait_for("lab-end", DEADLINE)?;
    let backend_s = cpu::process_time_s(pid)? - before;
    let (busy_s, wall_s) = (HostTime::now()?.busy_s - host.busy_s, start.elapsed().as_secs_f64());
    let outcome = guest.finish(DEADLINE)?;
    ensure!(
        outcome.code == 0,
        "the guest's script ended with {}: {}",
        outcome.code,
        outcome.output
    );
    let seconds = seconds(&outcome.output)
        .with_context(|| format!("dd's report cannot be read: {}", outcome.output))?;
    let iops = reads as f64 / seconds;
    let metrics = [
        ("requests", reads as f64),
        ("errors", 0.0),
        ("iops", iops),
        ("mib_per_s", iops * BYTES as f64 / f64::from(1 << 20)),
        ("p50_us", 1e6 / iops),
        ("backend_cpus", backend_s / wall_s),
        ("backend_cpu_us_per_request", backend_s * 1e6 / reads as f64),
        // The guest's whole CPU counts as its own work.
        ("other_cpus", (busy_s - backend_s - wall_s).max(0.0) / wall_s),
    ];
    Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Parses the duration from `... bytes (...) copied, 1.234 s, ...`.
fn seconds(output: &str) -> Option<f64> {
    let (_, rest) = output.rsplit_once(" copied, ")?;
    let seconds: f64 = rest.split_once(" s,")?.0.parse().ok()?;
    (seconds > 0.0).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_dd_is_read() {
        let text = "40960 bytes (41 kB, 40 KiB) copied, 0.00257 s, 15.9 MB/s\nlab-end";
        assert_eq!(seconds(text), Some(0.00257));
        assert_eq!(seconds("dd: nothing"), None);
        assert_eq!(seconds("1 bytes copied, 0 s, 1 GB/s"), None);
    }
}
