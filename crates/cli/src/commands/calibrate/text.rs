//! Result of `ringway calibrate` as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::calibration::{Calibration, CellReport, MachineLoad, RequestCost, StorageProfile};
use model::diagnosis::bytes as size_text;

/// Bytes in a megabyte of the tables.
const MB: f64 = 1e6;

/// Returns the whole report.
pub(super) fn report(found: &Calibration, machine: Option<&MachineLoad>) -> String {
    let mut text = head(found);
    for write in [false, true] {
        let cells: Vec<_> = found.cells.iter().filter(|cell| cell.write == write).collect();
        if !cells.is_empty() {
            let name = if write { "writes" } else { "reads" };
            let _ = writeln!(
                text,
                "\n{name} in MB/s; columns: bytes of a request; rows: bytes at a time"
            );
            text += &matrix(&cells);
        }
    }
    text.push('\n');
    text += &profile(&found.profile);
    text.push('\n');
    let usual = MachineLoad::usual();
    let loads =
        usual.iter().map(|(name, load)| (*name, load)).chain(machine.map(|one| ("yours", one)));
    for (name, load) in loads {
        let count = found.profile.machines(load);
        let _ = writeln!(text, "{:<14} {count} machines like {name}: {load}", "room for");
    }
    text
}

fn head(found: &Calibration) -> String {
    let device = &found.profile.device;
    let named = device.name.as_deref().unwrap_or("no block device of this host");
    let model = device.model.as_deref().map(|model| format!(" ({model})")).unwrap_or_default();
    let (path, device) = (found.path.display().to_string(), format!("{named}{model}"));
    let mut text = format!("{:<14} {}\n", "storage", path.escape_debug());
    let _ = writeln!(text, "{:<14} {}", "device", device.escape_debug());
    if found.scratch_bytes > 0 {
        let size = size_text(found.scratch_bytes);
        let _ = writeln!(text, "{:<14} {size}, written, measured and removed", "file");
    }
    let others = match found.others_percent {
        None => "not known: the kernel does not count the requests of this storage".into(),
        Some(0) => "none".into(),
        Some(percent) => format!("{percent}% of the time; the figures are lower for it"),
    };
    let _ = writeln!(text, "{:<14} {others}", "other use");
    text
}

/// Returns the table of one direction.
fn matrix(cells: &[&CellReport]) -> String {
    let sizes: BTreeSet<u32> = cells.iter().map(|cell| cell.bytes).collect();
    let totals: BTreeSet<u32> = cells.iter().map(|cell| cell.bytes * cell.depth).collect();
    let mut text = format!("{:>8}", "");
    for size in &sizes {
        let _ = write!(text, "{:>7}", short_size(*size));
    }
    text.push('\n');
    for total in &totals {
        let _ = write!(text, "{:>8}", short_size(*total));
        for size in &sizes {
            let cell =
                cells.iter().find(|cell| cell.bytes == *size && cell.bytes * cell.depth == *total);
            let rate = cell.map(|cell| rate_text(cell.bytes_per_second)).unwrap_or_default();
            let _ = write!(text, "{rate:>7}");
        }
        let line = text.trim_end_matches(' ').len();
        text.truncate(line);
        text.push('\n');
    }
    text
}

/// Returns a throughput in MB/s with three digits at most behind which nothing is known.
pub(super) fn rate_text(bytes_per_second: u64) -> String {
    match bytes_per_second as f64 / MB {
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// Returns a power of two as `512`, `4K` or `1M`.
pub(super) fn short_size(bytes: u32) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

fn profile(profile: &StorageProfile) -> String {
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1000.0);
    let cost = |cost: RequestCost| {
        let per_second = |bytes: u64| 1_000_000_000 / cost.of(bytes).max(1);
        format!(
            "{} and {} a MiB: at most {} of 4 KiB or {} of 64 KiB a second",
            us(cost.request_ns),
            us(cost.mib_ns),
            per_second(4096),
            per_second(65_536)
        )
    };
    let depth = |bytes: u64| profile.knee_ns.div_ceil(profile.reads.of(bytes).max(1));
    let knee = format!(
        "{} of device time: {} reads of 4 KiB or {} of 64 KiB at a time; more are not faster",
        us(profile.knee_ns),
        depth(4096),
        depth(65_536)
    );
    let split = match (profile.piece_bytes, profile.seeks) {
        (Some(bytes), _) => format!(
            "a large request alone is {}% faster in pieces of {}",
            profile.piece_gain_percent,
            short_size(bytes)
        ),
        (None, true) => "no: the storage seeks".into(),
        (None, false) => "no: a large request is not faster in pieces".into(),
    };
    let lines = [
        ("latency", format!("{} for a small read alone", us(profile.latency_ns))),
        ("a read costs", cost(profile.reads)),
        ("a write costs", cost(profile.writes)),
        ("knee", knee),
        ("splitting", split),
    ];
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<14} {value}");
        text
    })
}
