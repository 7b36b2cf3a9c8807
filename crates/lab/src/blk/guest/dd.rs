//! dd in a guest: single-threaded sequential small reads.
//!
//! dd reads 4 KiB at a time past the guest's page cache and prints the duration.

use anyhow::{Context, Result};

use super::{BEGIN, END, run};
use crate::blk::client::Window;
use crate::blk::image::DISK_BYTES;
use crate::blk::medium::Medium;
use crate::blk::systems::{Place, System};
use crate::experiment::Sample;

/// Size of one read in bytes.
const BYTES: u64 = 4096;
/// Reads before the measurement.
const WARM: u64 = 500;
/// Reads per millisecond of the window, about the rate of such a guest.
const PER_MS: u64 = 12;

/// Boots a guest on a fresh backend, runs its reads, and ends both.
pub(in crate::blk) fn measure(
    system: System,
    medium: Medium,
    place: &Place,
    window: Window,
) -> Result<Sample> {
    let millis = u64::try_from(window.measure.as_millis())?;
    let reads = (PER_MS * millis).clamp(100, DISK_BYTES / BYTES);
    let script = format!(
        "export LC_ALL=C
         read_some() {{ dd if=/dev/vda of=/dev/null bs={BYTES} count=$1 iflag=direct 2>&1; }}
         read_some {WARM} >/dev/null && echo {BEGIN} && read_some {reads} && echo {END}"
    );
    let ran = run(system, medium, place, &script)?;
    let seconds = seconds(&ran.output)
        .with_context(|| format!("dd's report cannot be read: {}", ran.output))?;
    let requests = reads as f64;
    let iops = requests / seconds;
    let metrics = [
        ("requests", requests),
        ("errors", 0.0),
        ("iops", iops),
        ("mib_per_s", iops * BYTES as f64 / f64::from(1 << 20)),
        ("p50_us", 1e6 / iops),
    ];
    let mut sample = ran.cpu(requests);
    sample.extend(metrics.map(|(name, value)| (name.to_owned(), value)));
    Ok(sample)
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
