//! Tables for terminals.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use model::report::{DiskStats, Stats};
use model::spec::{Backend, FileRef};
use toolstack::run::BusyTracker;

/// Bytes in a MiB, as a divisor.
const MIB: f64 = 1_048_576.0;

/// Creates a table with a header. All columns from `first_number` on are right-aligned.
pub(crate) fn new(header: &[&str], first_number: usize) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(first_number) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Returns a table of the disks' activity, with names from `name`. IOPS count only busy time.
pub(crate) fn disks(
    stats: &Stats,
    busy_tracker: &BusyTracker,
    name: impl Fn(&DiskStats) -> String,
) -> Table {
    let header =
        ["disk", "requests", "read MiB", "written MiB", "IOPS", "p50 us", "p99 us", "errors"];
    let mut table = new(&header, 1);
    for disk in &stats.disks {
        let requests = disk.requests.total();
        table.add_row([
            name(disk),
            requests.to_string(),
            format!("{:.1}", disk.bytes.read as f64 / MIB),
            format!("{:.1}", disk.bytes.write as f64 / MIB),
            format!("{:.0}", busy_tracker.rate(&disk.id, requests)),
            format!("{:.0}", disk.latency.p50_us),
            format!("{:.0}", disk.latency.p99_us),
            disk.errors.to_string(),
        ]);
    }
    table
}

/// Returns the id of a disk with its backend.
pub(crate) fn id_and_backend(disk: &DiskStats) -> String {
    format!("{} ({})", disk.id, backend(&disk.backend))
}

/// Names the top file of a tree, or the kind of a disk without files.
fn backend(backend: &Backend) -> String {
    if let Backend::Overlay { base, .. } = backend {
        return format!("overlay over {}", self::backend(base));
    }
    match backend.files().next() {
        Some(FileRef::Path(path)) => {
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        }
        Some(file) => file.to_string(),
        None if backend.is_in_memory() => "memory".into(),
        None => "null".into(),
    }
}
